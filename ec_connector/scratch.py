"""Destinations of fetches: ranges of the store's region, which every transport can write to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ec_connector.holder import STORE_REGION
from ec_connector.regions import Region
from ec_connector.store import EmbeddingStore, Scratch
from ec_connector.transports.base import Channel
from protocol.errors import TransferError

_QUARANTINE_S = 600.0
"""After this long a read that was given up is taken for ended: the peer and its host are gone."""


class Destination:
    """Writable memory for one item; `free` gives it back and is harmless when repeated."""

    def __init__(self, buffer: memoryview, pool: ScratchPool, scratch: Scratch | None) -> None:
        self.buffer = buffer
        self._pool = pool
        self._scratch = scratch

    def free(self) -> None:
        """Nobody writes or reads it any more."""
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            self._pool.store.free_scratch(scratch)


class ScratchPool:
    """Takes destinations from the store and quarantines those that may still be written to."""

    def __init__(self, store: EmbeddingStore[Any], regions: Mapping[int, Region]) -> None:
        self.store = store
        self._regions = regions
        self._quarantined: set[asyncio.Task[None]] = set()

    def take(self, nbytes: int, *, registered: bool) -> Destination:
        """Memory of the store; where it is full, plain memory unless it must be `registered`.

        Raises:
            TransferError: `store_full`.
        """
        try:
            scratch = self.store.take_scratch(nbytes, time.monotonic(), "")
        except TransferError as error:
            if registered:
                raise TransferError(error.message, "store_full") from None
            return Destination(memoryview(bytearray(nbytes)), self, None)
        region = self._regions[STORE_REGION].buffer
        return Destination(region[scratch.offset : scratch.offset + nbytes], self, scratch)

    def quarantine(
        self, destination: Destination, channel: Channel, settled: Callable[[], None]
    ) -> None:
        """Free the destination once the channel has settled, and call `settled`."""
        task = asyncio.create_task(_free_when_settled(destination, channel, settled))
        self._quarantined.add(task)
        task.add_done_callback(self._quarantined.discard)

    async def stop(self) -> None:
        """Do not wait for the quarantined: the transports end before the memory does."""
        tasks = list(self._quarantined)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _free_when_settled(
    destination: Destination, channel: Channel, settled: Callable[[], None]
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_QUARANTINE_S):
            await channel.settled()
    destination.free()
    settled()
