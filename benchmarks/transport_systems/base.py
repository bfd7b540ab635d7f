"""Both ends of a system under test, as processes. Imports the standard library only.

stdin gets one line of `Settings`; the server answers with its address and serves until stdin ends,
the client answers with the seconds of its rounds. A round moves `in_flight` items at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

BYTE = 0x5A
"""What every item consists of."""

_WARM_UP_ROUNDS = 5
_MIN_ROUNDS = 3
_MAX_ROUNDS = 400


@dataclass(frozen=True)
class Settings:
    """What to do: `cases` are (size, in flight); `core` is None where nothing is pinned."""

    cases: list[tuple[int, int]]
    seconds: float
    core: int | None
    address: Any

    @property
    def largest(self) -> int:
        return max(size for size, _ in self.cases)

    @property
    def most(self) -> int:
        return max(in_flight for _, in_flight in self.cases)

    @property
    def span(self) -> int:
        """Bytes that all items of a round take at most."""
        return max(size * in_flight for size, in_flight in self.cases)


def run(
    serve: Callable[[Settings, Callable[[Any], None]], None],
    measure: Callable[[Settings], list[list[float]]],
) -> None:
    """The module's main: `serve` calls its second argument with the address, once it listens."""
    settings = Settings(**json.loads(sys.stdin.readline()))
    if settings.core is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {settings.core})
    if sys.argv[1] == "serve":
        serve(settings, lambda address: _say({"address": address}))
    else:
        _say({"rounds": measure(settings)})


def until_told() -> None:
    """Serve in other threads until the benchmark has seen enough."""
    sys.stdin.read()


def rounds(settings: Settings, move: Callable[[], object]) -> list[float]:
    """Seconds of each round; the first ones, that set things up, are not counted."""
    begun = time.perf_counter()
    for _ in range(_WARM_UP_ROUNDS):
        move()
        if time.perf_counter() - begun > settings.seconds:
            break
    seconds: list[float] = []
    end = time.perf_counter() + settings.seconds
    while len(seconds) < _MAX_ROUNDS:
        started = time.perf_counter()
        move()
        now = time.perf_counter()
        seconds.append(now - started)
        if now > end and len(seconds) >= _MIN_ROUNDS:
            break
    return seconds


async def async_rounds(settings: Settings, move: Callable[[], Awaitable[object]]) -> list[float]:
    """The same for coroutines."""
    begun = time.perf_counter()
    for _ in range(_WARM_UP_ROUNDS):
        await move()
        if time.perf_counter() - begun > settings.seconds:
            break
    seconds: list[float] = []
    end = time.perf_counter() + settings.seconds
    while len(seconds) < _MAX_ROUNDS:
        started = time.perf_counter()
        await move()
        now = time.perf_counter()
        seconds.append(now - started)
        if now > end and len(seconds) >= _MIN_ROUNDS:
            break
    return seconds


def median(seconds: list[float]) -> float:
    """The round that half of the rounds beat."""
    return statistics.median(seconds)


def _say(what: dict[str, Any]) -> None:
    print("@" + json.dumps(what), flush=True)
