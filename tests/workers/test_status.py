"""The status stream: on change, not more often than it may, and now and then anyway."""

from __future__ import annotations

import asyncio
import time

from protocol.replica import ReplicaStatus
from workers.status import StatusBoard


async def test_it_says_what_changed_and_nothing_twice() -> None:
    now = ReplicaStatus(running=0)
    board = StatusBoard(lambda: now)
    statuses = board.watch()
    assert (await anext(statuses)).running == 0
    waiting = asyncio.ensure_future(anext(statuses))
    board.touch()
    await asyncio.sleep(0.12)
    assert not waiting.done(), "nothing changed"
    now = ReplicaStatus(running=1)
    board.touch()
    assert (await waiting).running == 1
    await statuses.aclose()


async def test_changes_in_quick_succession_are_told_at_most_ten_times_a_second() -> None:
    count = 0

    def read() -> ReplicaStatus:
        nonlocal count
        count += 1
        return ReplicaStatus(running=count)

    board = StatusBoard(read)
    statuses = board.watch()
    await anext(statuses)
    began = time.monotonic()
    for _ in range(2):
        board.touch()
        await anext(statuses)
    assert time.monotonic() - began > 0.15
    await statuses.aclose()
