"""Prefill that begins before its items are encoded."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import InvalidRequest, TransferError, Unavailable
from protocol.replica import Role
from tests.coordinator.conftest import FUSED, SPLIT, Start
from tests.coordinator.stub_words import eventually, expected

PROMPT = [2, 9, 9, 9, 9, *(10 + ord(c) % 80 for c in "hi")]


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


@pytest.mark.parametrize(("roles", "name"), [(SPLIT, "prefill"), (FUSED, "generate")])
async def test_prefill_is_called_while_items_are_in_work(
    start: Start, roles: tuple[Role, ...], name: str
) -> None:
    async with start(roles) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("image:a", "image:b", "hi"))
        await eventually(lambda: any(called == name for called, _ in stage.cluster.calls))
        assert not stage.cluster.embeddings
        for replica in stage.of("encode"):
            replica.gate.set()
        assert (await running).status_code == 200
        assert stage.cluster.encodes == {"a": 1, "b": 1}
        await stage.idle()


async def test_without_overlap_prefill_waits_for_every_item(start: Start) -> None:
    async with start(SPLIT, overlap=False) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("image:a", "hi"))
        await eventually(lambda: sum(r.served["encode"] for r in stage.of("encode")) == 1)
        assert stage.of("prefill")[0].served["prefill"] == 0
        for replica in stage.of("encode"):
            replica.gate.set()
        assert (await running).status_code == 200


async def test_an_item_that_fails_after_it_was_announced_is_encoded_elsewhere(
    start: Start,
) -> None:
    for error in (Unavailable("gone"), TransferError("no", "transport_failed", ("a",))):
        async with start(SPLIT) as stage:
            first = [error]
            for replica in stage.of("encode"):
                replica.fail = lambda name, left=first: (  # type: ignore[misc]
                    left.pop() if name == "encode" and left else None
                )
            answer = await stage.chat("image:a", "hi")
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == words(expected(PROMPT, 8))
            assert stage.cluster.encodes == {"a": 1}
            await stage.idle()


async def test_an_encoder_that_dies_after_it_announced_costs_one_try(start: Start) -> None:
    async with start(SPLIT) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("image:a", "hi"))
        await eventually(lambda: stage.of("prefill")[0].served["prefill"] == 1)
        await eventually(lambda: sum(r.served["encode"] for r in stage.of("encode")) == 1)
        dying = next(r for r in stage.of("encode") if r.served["encode"])
        other = next(r for r in stage.of("encode") if r is not dying)
        other.gate.set()
        await dying.stop()
        answer = await running
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == words(expected(PROMPT, 8))


async def test_an_item_that_is_at_fault_is_the_clients_error(start: Start) -> None:
    async with start(SPLIT) as stage:
        for replica in stage.of("encode"):
            replica.fail = lambda name: (
                InvalidRequest("wrong rows", "features.mm_placeholders")
                if name == "encode"
                else None
            )
        response = await stage.chat("image:a", "hi")
        assert response.status_code == 400
        assert response.json()["error"]["stage"] == "encode"
        await stage.idle()


async def test_a_prefill_that_dies_leaves_items_in_work(start: Start) -> None:
    async with start((*SPLIT, "prefill")) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("image:a", "hi"))
        await eventually(lambda: sum(r.served["prefill"] for r in stage.of("prefill")) == 1)
        dying = next(r for r in stage.of("prefill") if r.served["prefill"])
        await stage.remove(dying)
        await eventually(lambda: stage.of("prefill")[0].served["prefill"] == 1)
        for replica in stage.of("encode"):
            replica.gate.set()
        assert (await running).status_code == 200
        assert sum(r.served["encode"] for r in stage.of("encode")) == 1


async def test_two_coordinators_encode_an_item_once(start: Start) -> None:
    async with start((*SPLIT, "encode")) as stage, start(()) as other:
        other.replicas = stage.replicas
        other.cluster = stage.cluster
        other.publish()
        await other.ready(len(stage.replicas))
        answers = await asyncio.gather(
            *(
                coordinator.chat(f"image:{number % 10}", f"{number}")
                for number in range(60)
                for coordinator in (stage, other)
            )
        )
        assert {answer.status_code for answer in answers} == {200}
        assert set(stage.cluster.encodes.values()) == {1}
        assert len(stage.cluster.encodes) == 10
        other.replicas = []
