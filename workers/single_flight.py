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
    given_up: bool = False


class SingleFlight(Generic[K, T]):
    """Runs `make` once per key at a time; later callers of the key wait for the same result.

    The computation belongs to all who wait: it is cancelled when the last of them is, once. It may
    end well nevertheless; who asks meanwhile gets what comes of it, or has it begun again.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def run(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """The result for `key`; raises what `make` raised."""
        while True:
            flight = self._flights.get(key)
            if flight is None:
                flight = _Flight(asyncio.ensure_future(_await(make)))
                self._flights[key] = flight
                flight.task.add_done_callback(functools.partial(self._landed, key))
            flight.waiters += 1
            try:
                return await asyncio.shield(flight.task)
            except asyncio.CancelledError:
                # One that was given up before this caller came has to be begun again.
                if not (flight.given_up and flight.task.cancelled()) or _leaving():
                    raise
            finally:
                flight.waiters -= 1
                if flight.waiters == 0 and not (flight.task.done() or flight.given_up):
                    flight.given_up = True
                    flight.task.cancel()

    def _landed(self, key: K, _task: asyncio.Task[T]) -> None:
        del self._flights[key]


def _leaving() -> bool:
    """Whether it is the caller that is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
