"""What happens to a request when a replica that it needs fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from protocol.errors import (
    InternalError,
    InvalidRequest,
    Overloaded,
    TransferError,
    TriptychError,
    Unavailable,
)
from protocol.replica import Role
from tests.coordinator.conftest import ALL, FUSED, SPLIT, Stage, Start, events
from tests.coordinator.stub_stages import StubReplica
from tests.coordinator.stub_words import eventually, expected

PROMPT = [2, 9, 9, 9, 9, *(10 + ord(c) % 80 for c in "hi")]


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


def once(name: str, error: TriptychError) -> Callable[[str], TriptychError | None]:
    """Fail the first call of that name."""
    left = [error]

    def fail(called: str) -> TriptychError | None:
        return left.pop() if called == name and left else None

    return fail


async def check_answer(stage: Stage, count: int = 8) -> None:
    answer = await stage.chat("image:a", "hi", max_tokens=count)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == words(expected(PROMPT, count))
    await stage.idle()


@pytest.mark.parametrize("role", ["render", "encode", "prefill", "decode"])
@pytest.mark.parametrize(
    "error", [Unavailable("gone"), Overloaded("busy"), InternalError("broken")]
)
async def test_a_failed_call_is_made_again(start: Start, role: Role, error: TriptychError) -> None:
    name = "generate" if role == "decode" else role
    async with start((*SPLIT, "render", "prefill", "decode")) as stage:
        fail = once(name, type(error)(error.message))
        for replica in stage.of(role):
            replica.fail = fail
        await check_answer(stage)


async def test_a_refusal_is_not_tried_elsewhere(start: Start) -> None:
    async with start((*SPLIT, "prefill")) as stage:
        for replica in stage.of("prefill"):
            replica.fail = lambda _name: InvalidRequest("too long", "token_ids")
        response = await stage.chat("hi")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "token_ids"
        assert sum(r.served["prefill"] for r in stage.of("prefill")) == 1
        await stage.idle()


@pytest.mark.parametrize("roles", [(*SPLIT, "decode"), (*FUSED, "prefill_decode"), (*ALL, "all")])
@pytest.mark.parametrize("at", [0, 3])
async def test_a_replica_that_dies_in_mid_stream_costs_no_token(
    start: Start, roles: tuple[Role, ...], at: int
) -> None:
    async with start(roles) as stage:
        first: list[StubReplica] = []

        def die(replica: StubReplica) -> None:
            if not first:
                first.append(replica)
                replica.fail_at_token = at

        for replica in stage.of(roles[-1]):
            replica.fail = lambda name, r=replica: die(r) if name == "generate" else None  # type: ignore[misc]
        response = await stage.chat("image:a", "hi", max_tokens=12, stream=True)
        text = "".join(
            choice["delta"].get("content", "")
            for event in events(response.text)
            for choice in event["choices"]
        )
        assert text == words(expected(PROMPT, 12))


async def test_several_choices_go_on_where_each_was(start: Start) -> None:
    async with start((*SPLIT, "decode")) as stage:
        for replica in stage.of("decode")[:1]:
            replica.fail_at_token = 5
        for _ in range(2):  # one of the two meets the dying replica
            answer = await stage.chat("hi", n=3, temperature=1.0, seed=5, max_tokens=9)
            prompt = [2, *PROMPT[5:]]
            texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
            assert texts == [words(expected(prompt, 9, 5, i)) for i in range(3)]


async def test_a_sampled_request_without_a_seed_goes_on_as_it_began(start: Start) -> None:
    async with start((*SPLIT, "decode")) as stage:
        stage.of("decode")[0].fail_at_token = 3
        for _ in range(2):
            answer = await stage.chat("hi", temperature=1.0, max_tokens=9)
            prefill = [call for name, call in stage.cluster.calls if name == "prefill"][-1]
            seed = prefill.sampling_params.seed
            assert seed is not None
            text = answer.json()["choices"][0]["message"]["content"]
            assert text == words(expected([2, *PROMPT[5:]], 9, seed))


async def test_an_evicted_embedding_is_encoded_again(start: Start) -> None:
    async with start(SPLIT, overlap=False) as stage:

        def evict(name: str) -> TriptychError | None:
            if name == "prefill" and stage.of("prefill")[0].served["prefill"] == 1:
                stage.cluster.embeddings.clear()
            return None

        stage.of("prefill")[0].fail = evict
        await check_answer(stage)
        assert stage.cluster.encodes == {"a": 2}


async def test_only_the_lost_item_is_encoded_again_and_elsewhere(start: Start) -> None:
    async with start(SPLIT) as stage:
        lost = TransferError("no answer", "peer_unreachable", ("a",))
        stage.of("prefill")[0].fail = once("prefill", lost)
        response = await stage.chat("image:a", "image:b", "hi")
        assert response.status_code == 200
        assert stage.cluster.encodes == {"a": 2, "b": 1}
        holders = [
            item["key"].split("/")[0]
            for name, call in stage.cluster.calls
            if name == "prefill"
            for item in call.ec_transfer_params["ec_items"]
            if item["mm_hash"] == "a"
        ]
        assert holders[0] != holders[1]


async def test_pixels_go_to_prefill_where_embeddings_never_arrive(start: Start) -> None:
    async with start(SPLIT) as stage:
        for replica in stage.of("prefill"):
            replica.fail = lambda _name, r=replica: (  # type: ignore[misc]
                TransferError("no", "transport_failed", ("a",))
                if r.served["prefill"] <= 3
                else None
            )
        await check_answer(stage)
        last = [call for name, call in stage.cluster.calls if name == "prefill"][-1]
        assert last.features.kwargs_handles is not None
        assert last.ec_transfer_params is None


async def test_pixels_that_are_gone_are_rendered_again(start: Start) -> None:
    async with start(SPLIT) as stage:

        def lose(name: str) -> TriptychError | None:
            if name == "encode" and sum(stage.cluster.encodes.values()) == 0 and not lost:
                lost.append(True)
                stage.cluster.pixels.clear()
            return None

        lost: list[bool] = []
        for replica in stage.of("encode"):
            replica.fail = lose
        await check_answer(stage)
        assert stage.of("render")[0].served["render"] == 2


async def test_kv_blocks_of_a_refused_decode_are_released(start: Start) -> None:
    async with start(SPLIT) as stage:
        stage.of("decode")[0].fail = lambda _name: InvalidRequest("no", "sampling_params")
        response = await stage.chat("hi")
        assert response.status_code == 400
        await stage.idle()


async def test_the_budget_ends_hopeless_requests_with_their_error(start: Start) -> None:
    async with start(SPLIT) as stage:
        stage.of("prefill")[0].fail = lambda _name: Unavailable("gone")
        response = await stage.chat("hi")
        assert response.status_code == 503
        error = response.json()["error"]
        assert (error["stage"], error["retryable"]) == ("prefill", True)
        await stage.idle()


async def test_a_replica_that_hangs_is_given_up(start: Start) -> None:
    async with start((*SPLIT, "prefill"), probe_interval_s=0.05, probe_timeout_s=0.3) as stage:
        hanging = stage.of("prefill")[0]
        other = stage.of("prefill")[1]
        hanging.hang = True
        for _ in range(2):
            await check_answer(stage)
        assert other.served["prefill"] >= 2
        await eventually(lambda: sum(m.ready for m in stage.server.pool.members()) >= 5)


async def test_a_replica_that_left_finishes_its_streams(start: Start) -> None:
    async with start((*SPLIT, "decode")) as stage:
        for replica in stage.of("decode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("hi", max_tokens=6))
        await eventually(lambda: stage.cluster.running == 1)
        busy = next(r for r in stage.of("decode") if r.served["generate"])
        stage.replicas.remove(busy)
        stage.publish()
        await stage.ready()
        busy.gate.set()
        answer = (await running).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert sum(name == "generate" for name, _ in stage.cluster.calls) == 1
        await busy.stop()


async def test_requests_wait_for_the_first_replica_of_a_stage(start: Start) -> None:
    async with start(("render", "encode", "prefill")) as stage:
        running = asyncio.create_task(stage.chat("hi"))
        await asyncio.sleep(0.05)
        assert not running.done()
        await stage.add("decode")
        assert (await running).status_code == 200


async def test_replicas_of_different_fingerprints_never_serve_together(start: Start) -> None:
    from protocol.replica import Fingerprint

    other = Fingerprint("n", "", "float32", "kv1/16")
    async with start(SPLIT) as stage:
        for role in ("encode", "prefill", "decode"):
            added: list[StubReplica] = await stage.add(role, fingerprint=other)
            assert added
        await stage.ready()
        for _ in range(12):
            stage.cluster.calls.clear()
            before = {r.replica.id: sum(r.served.values()) for r in stage.replicas}
            assert (await stage.chat("image:a", "hi")).status_code == 200
            served = [
                r.replica.fingerprint
                for r in stage.replicas
                if r.role != "render" and sum(r.served.values()) > before[r.replica.id]
            ]
            assert len(set(served)) == 1


async def test_a_descriptor_that_prefill_refuses_is_the_encoders_fault(start: Start) -> None:
    async with start(SPLIT, overlap=False) as stage:
        refusal = InvalidRequest("of a host that is not allowed", "ec_transfer_params")
        stage.of("prefill")[0].fail = once("prefill", refusal)
        await check_answer(stage)
        assert stage.cluster.encodes == {"a": 2}
        assert all(replica.served["encode"] == 1 for replica in stage.of("encode"))


async def test_ids_that_replicas_see_are_nobody_elses(start: Start) -> None:
    async with start(SPLIT) as stage:
        answers = await asyncio.gather(*(stage.chat("hi", request_id="mine") for _ in range(2)))
        assert {answer.json()["id"] for answer in answers} == {"chatcmpl-mine"}
        seen = {call.request_id for name, call in stage.cluster.calls if name == "prefill"}
        assert len(seen) == 2
        assert all(one.startswith("chatcmpl-mine-") for one in seen)
