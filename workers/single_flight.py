"""One computation per key, however many wait for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class SingleFlight(Generic[K, T]):
    """Runs `make` once per key at a time; later callers of the key wait for the same result.

    The computation belongs to all who wait: it is cancelled when the last of them is.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def run(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """The result for `key`; raises what `make` raised."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(_await(make)))
            self._flights[key] = flight
            flight.task.add_done_callback(functools.partial(self._landed, key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                flight.task.cancel()
                self._forget(key, flight)

    def _landed(self, key: K, flight: _Flight[T], _task: asyncio.Task[T]) -> None:
        self._forget(key, flight)

    def _forget(self, key: K, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:  # a cancelled one may have a successor already
            del self._flights[key]


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
