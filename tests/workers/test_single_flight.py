"""One computation per key, shared by all who wait."""

from __future__ import annotations

import asyncio

import pytest

from workers.single_flight import SingleFlight


class Work:
    """A computation that runs until it is told to end."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.end = asyncio.Event()

    async def __call__(self) -> int:
        self.started += 1
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.started


async def test_all_who_ask_meanwhile_get_one_result() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = [asyncio.create_task(flights.run("k", work)) for _ in range(3)]
    await asyncio.sleep(0)
    assert "k" in flights
    work.end.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert len(flights) == 0
    assert await flights.run("k", work) == 2


async def test_it_goes_on_while_anybody_waits_and_ends_with_the_last() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = [asyncio.create_task(flights.run("k", work)) for _ in range(2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert work.cancelled == 0
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert work.cancelled == 1
    assert len(flights) == 0


async def test_who_asks_after_a_cancelled_one_gets_a_new_one() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    first, second = Work(), Work()
    leaving = asyncio.create_task(flights.run("k", first))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    second.end.set()
    assert await flights.run("k", second) == 1


async def test_a_failure_reaches_all_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def fails() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    results = await asyncio.gather(
        *(flights.run("k", fails) for _ in range(2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [ValueError, ValueError]
    with pytest.raises(ValueError, match="no"):
        await flights.run("k", fails)


async def test_one_that_ends_well_although_it_was_given_up_serves_who_asked_meanwhile() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    begun, given_up, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> int:
        try:
            begun.set()
            await end.wait()
        except asyncio.CancelledError:
            given_up.set()
            await end.wait()
        return 7

    leaving = asyncio.create_task(flights.run("k", stubborn))
    await begun.wait()
    leaving.cancel()
    await given_up.wait()
    asking = asyncio.create_task(flights.run("k", stubborn))
    await asyncio.sleep(0)
    end.set()
    assert await asking == 7
    assert len(flights) == 0
