"""Running things together, merging and ending streams, cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from coordinator.concurrency import Janitor, merged, together, until
from protocol.errors import Unavailable


async def test_the_first_failure_cancels_the_rest_and_is_raised_bare() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        await together([wait(), fail()])
    assert ended == [True]


async def counted(count: int, closed: list[int]) -> AsyncGenerator[int, None]:
    try:
        for number in range(count):
            yield number
            await asyncio.sleep(0)
    finally:
        closed.append(count)


async def test_merged_streams_keep_their_own_order() -> None:
    closed: list[int] = []
    got = [value async for value in merged([counted(5, closed), counted(3, closed)])]
    assert sorted(got) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert sorted(closed) == [3, 5]


async def test_leaving_a_merged_stream_closes_all() -> None:
    closed: list[int] = []
    async with contextlib.aclosing(merged([counted(99, closed), counted(98, closed)])) as stream:
        await anext(stream)
    assert sorted(closed) == [98, 99]


async def test_a_stream_ends_when_it_is_told_to() -> None:
    closed: list[int] = []
    ended = asyncio.Event()
    got = []
    async for value in until(ended, counted(99, closed)):
        got.append(value)
        if value == 3:
            ended.set()
    assert got == [0, 1, 2, 3]
    assert closed == [99]


async def test_the_janitor_finishes_what_it_was_given_and_survives_errors() -> None:
    janitor = Janitor()
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(True)

    async def fail() -> None:
        raise Unavailable("gone")

    janitor.finish(work())
    janitor.finish(fail())
    await janitor.stop()
    assert done == [True]
