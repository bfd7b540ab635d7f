"""One computation per key, however many wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class SingleFlight(Generic[K, T]):
    """Runs `make` once per key at a time; later callers of the key wait for the same result.

    The computation belongs to all who wait, not to the first of them: it goes on when one is
    cancelled, and is cancelled with the last.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def run(self, key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result for `key`; raises what `make` raised."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(make()))
            flight.task.add_done_callback(partial(self._ended, key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                self._forget(key, flight)
                flight.task.cancel()
                # The last waiter sees the clean-up through, so that nothing outlives it.
                await asyncio.gather(flight.task, return_exceptions=True)

    def _ended(self, key: K, flight: _Flight[T], _task: asyncio.Task[T]) -> None:
        self._forget(key, flight)

    def _forget(self, key: K, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
