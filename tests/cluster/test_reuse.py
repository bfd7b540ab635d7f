"""No picture is encoded twice: by one coordinator, by two, and when half of them are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.questions import Question, ask, question
from benchmarks.replaceable import Cluster, Slot, running
from tests.cluster.asking import unseen

CLIENTS = 16
REQUESTS = 200
PICTURES = 20
ENCODED = "triptych_worker_encoded_items_total"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    counts = {"render": 1, "encode": 2, "prefill_decode": 1}
    with running(tmp_path_factory.mktemp("reuse"), counts, coordinators=2) as started:
        yield started


def encoded(cluster: Cluster) -> dict[str, int]:
    """Items that each encode replica's tower has had."""
    return {slot.name: encoded_by(slot) for slot in cluster.of("encode")}


def encoded_by(slot: Slot) -> int:
    """Items that the tower of a replica that runs has had."""
    return int(slot.process.metrics().get(ENCODED, 0))


def grown(cluster: Cluster, before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in encoded(cluster).items()}


async def ask_all(cluster: Cluster, asked: list[Question], coordinators: int) -> None:
    """Every question, 16 at a time, to the coordinators in turn; all must be answered."""
    urls = [f"{door.http}/v1/chat/completions" for door in cluster.coordinators[:coordinators]]
    waiting = iter(enumerate(asked))
    errors: list[str] = []
    async with httpx.AsyncClient(timeout=120) as http:

        async def client() -> None:
            for number, one in waiting:
                answer = await ask(http, urls[number % len(urls)], one)
                if answer.error:
                    errors.append(answer.error)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    assert errors == []


def repeated(seed: int) -> list[Question]:
    """200 questions over 20 pictures, every picture among the first 20 and in each 20 after."""
    pictures = unseen("describe", PICTURES, seed=seed)
    return [question(pictures[number % PICTURES]) for number in range(REQUESTS)]


@pytest.mark.parametrize("coordinators", [1, 2])
async def test_twenty_pictures_are_encoded_twenty_times(
    cluster: Cluster, coordinators: int
) -> None:
    before = encoded(cluster)
    await ask_all(cluster, repeated(70 + coordinators), coordinators)
    assert sum(grown(cluster, before).values()) == PICTURES


async def test_both_coordinators_want_the_same_new_picture_at_once(cluster: Cluster) -> None:
    """All 16 clients ask about one picture that nobody has seen, half of them at either door."""
    before = encoded(cluster)
    pictures = unseen("describe", 5, seed=75)
    await ask_all(cluster, [question(one) for one in pictures for _ in range(CLIENTS)], 2)
    assert sum(grown(cluster, before).values()) == len(pictures)


async def test_a_picture_that_is_shown_three_times_is_encoded_once(cluster: Cluster) -> None:
    before = encoded(cluster)
    [one] = unseen("describe", 1, seed=76)
    await ask_all(cluster, [question(one._replace(images=one.images * 3))], 1)
    assert sum(grown(cluster, before).values()) == 1


@pytest.mark.parametrize("coordinators", [1, 2])
async def test_what_a_killed_replica_held_is_encoded_again_and_nothing_else(
    cluster: Cluster, coordinators: int
) -> None:
    before = encoded(cluster)
    asked = repeated(80 + coordinators)
    await ask_all(cluster, asked, coordinators)
    held = grown(cluster, before)
    assert sum(held.values()) == PICTURES
    victim = cluster.of("encode")[0]
    [survivor] = [slot for slot in cluster.of("encode") if slot is not victim]
    assert 0 < held[victim.name] < PICTURES
    had = encoded_by(survivor)
    cluster.kill(victim)
    try:
        await ask_all(cluster, asked, coordinators)
        assert encoded_by(survivor) - had == held[victim.name]
    finally:
        cluster.replace(victim)
