"""A replica's load, told to whoever listens: on change, at most ten times a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from protocol.replica import ReplicaStatus

_PERIOD_S = 0.1
_HEARTBEAT_S = 5.0


class StatusBoard:
    """Streams of a status that `read` gives.

    Args:
        read: the status now.
    """

    def __init__(self, read: Callable[[], ReplicaStatus]) -> None:
        self._read = read
        self._changed = asyncio.Event()

    def touch(self) -> None:
        """Something may have changed; called in the event loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[ReplicaStatus]:
        """The status now, then each time it is another one, and now and then anyway."""
        last: ReplicaStatus | None = None
        while True:
            changed = self._changed
            status = self._read()
            if status != last:
                last = status
                yield status
                await asyncio.sleep(_PERIOD_S)
                if self._changed is not changed:
                    continue
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    await changed.wait()
            except TimeoutError:
                last = None
