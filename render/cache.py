"""Processed media by content, and one processing at a time of each.

What a prompt needs of an item (hash, metadata, tokens) is small and kept long; its tensors are
large and kept within a byte budget. A medium that is being processed is waited for, not processed
twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from render.families.base import Run

MAX_HEADS = 65_536


class ItemHead(NamedTuple):
    """What a prompt needs of a processed medium.

    Attributes:
        mm_hash: content hash.
        metadata: the encoded metadata item, None where there is none.
        runs: the tokens that its placeholder is replaced by.
    """

    mm_hash: str
    metadata: bytes | None
    runs: tuple[Run, ...]


class ItemCache:
    """Least recently used heads and bodies.

    Args:
        capacity: bytes of bodies.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._heads: OrderedDict[Hashable, ItemHead] = OrderedDict()
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes of bodies."""
        return self._used

    def head(self, key: Hashable) -> ItemHead | None:
        """The head under a key, made the most recent."""
        head = self._heads.get(key)
        if head is not None:
            self._heads.move_to_end(key)
        return head

    def body(self, key: Hashable) -> bytes | None:
        """The encoded item under a key, made the most recent."""
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, key: Hashable, head: ItemHead, body: bytes) -> None:
        """Keep an item, pushing out what was used longest ago."""
        self._heads[key] = head
        self._heads.move_to_end(key)
        if len(self._heads) > MAX_HEADS:
            self._heads.popitem(last=False)
        self._used -= len(self._bodies.pop(key, b""))
        if len(body) > self._capacity:
            return
        self._bodies[key] = body
        self._used += len(body)
        while self._used > self._capacity:
            _, oldest = self._bodies.popitem(last=False)
            self._used -= len(oldest)


class SingleFlight:
    """One running computation per key; it ends when the last one that waits for it goes away."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def run(
        self, key: Hashable, make: Callable[[], Awaitable[tuple[ItemHead, bytes]]]
    ) -> tuple[ItemHead, bytes]:
        """The result of `make`, which is called only if none runs for the key."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(make()))
            self._flights[key] = flight
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0:
                self._flights.pop(key, None)
                if not flight.task.done():
                    flight.task.cancel()

    async def close(self) -> None:
        """Cancel what runs, and wait for it to end."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Flight:
    def __init__(self, task: asyncio.Future[tuple[ItemHead, bytes]]) -> None:
        self.task = task
        self.waiters = 0
