"""One computation per key."""

from __future__ import annotations

import asyncio

import pytest

from serving.single_flight import SingleFlight


async def test_callers_of_a_key_share_one_computation() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    made = []

    async def make() -> int:
        made.append(True)
        await asyncio.sleep(0)
        return len(made)

    assert await asyncio.gather(*(flights.run("a", make) for _ in range(5))) == [1] * 5
    assert len(flights) == 0
    assert await flights.run("a", make) == 2


async def test_it_goes_on_without_its_first_caller_and_ends_with_its_last() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    ended = []

    async def make() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return 0

    callers = [asyncio.create_task(flights.run("a", make)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number, caller in enumerate(callers):
        assert "a" in flights
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert len(ended) == number
    assert "a" not in flights


async def test_an_error_reaches_everybody_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError

    results = await asyncio.gather(
        *(flights.run("a", fail) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, ValueError) for result in results)
    with pytest.raises(ValueError):
        await flights.run("a", fail)


async def test_a_cancelled_flight_does_not_take_its_successor_along() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    gate = asyncio.Event()

    async def slow() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
        return 0

    async def next_one() -> int:
        await gate.wait()
        return 2

    first = asyncio.create_task(flights.run("a", slow))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(flights.run("a", next_one))
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert "a" in flights
    gate.set()
    assert await second == 2
