"""What generate and prefill calls refuse, and what they leave behind when they end early."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ec_connector.config import EcConfig
from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    TransferError,
    TriptychError,
    Unauthorized,
    Unavailable,
)
from protocol.features import PlaceholderRange
from protocol.generate import GenerateRequest
from protocol.replica import ReplicaStatus
from protocol.rpc import (
    DESCRIBE,
    ENCODE,
    GENERATE,
    KV_RELEASE,
    PREFILL,
    STATUS,
    Empty,
    EncodeCall,
    Prefilled,
    ReleaseCall,
)
from protocol.transfer import EcItem, ec_params, parse_kv_handoff
from serving.rpc_client import RpcChannel
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import picture, request, text


async def tokens_of(
    worker: RunningWorker, asked: GenerateRequest, seconds: float = 20
) -> list[int]:
    stream = worker.channel.stream(GENERATE, asked, Deadline.after(seconds))
    return [token async for delta in stream for token in delta.token_ids]


async def prefilled(worker: RunningWorker, asked: GenerateRequest) -> Prefilled:
    return await worker.channel.call(PREFILL, asked, Deadline.after(20))


def unknown_item(mm_hash: str, host: str, port: int) -> dict[str, object]:
    return ec_params([EcItem(mm_hash, host, port)])


REFUSED = {
    "token outside the vocabulary": (request([5, 320]), "token_ids", "Token id 320 is out of"),
    "prompt too long": (request(text(1, 512)), "token_ids", "maximum model length of 512"),
    "too many choices": (
        request([5], n=99, temperature=1.0),
        "sampling_params.n",
        "max_num_seqs (64), got 99",
    ),
    "all logprobs": (request([5], logprobs=-1), "sampling_params.logprobs", "max allowed: 20"),
    "prompt logprobs": (
        request([5], prompt_logprobs=1),
        "sampling_params.prompt_logprobs",
        "prompt_logprobs is not supported",
    ),
    "resumed token outside the vocabulary": (
        request([5], resume_token_ids=[999]),
        "resume_token_ids",
        "out of vocabulary",
    ),
    "resumed beyond the limit": (
        request([5], resume_token_ids=[6, 7], max_tokens=2),
        "resume_token_ids",
        "fewer tokens than max_tokens",
    ),
    "metadata without an embedding": (
        request(picture(1), pixels=False, ec_transfer_params={"ec_items": []}),
        "features.image.0",
        "has no kwargs_data",
    ),
    "neither pixels nor metadata": (
        request(picture(1), pixels=False, metadata=False),
        "features.image.0",
        "has no kwargs_data",
    ),
    "an embedding of a foreign connector": (
        request(
            picture(1),
            pixels=False,
            ec_transfer_params={picture(1).mm_hash: {"peer_host": "x", "peer_port": 1}},
        ),
        "features.image.0",
        "has no kwargs_data",
    ),
    "malformed ec_items": (
        request(picture(1), ec_transfer_params={"ec_items": [{"peer_host": 4}]}),
        "ec_transfer_params",
        "ec_items",
    ),
    "foreign KV parameters": (
        request([5], kv_transfer_params={"do_remote_prefill": True}),
        "kv_transfer_params",
        "another engine",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_honoured_is_400_and_names_the_field(
    start_worker: StartWorker, name: str
) -> None:
    asked, param, message = REFUSED[name]
    worker = await start_worker("all")
    with pytest.raises(InvalidRequest) as caught:
        await tokens_of(worker, asked)
    assert (caught.value.param, message in caught.value.message) == (param, True), caught.value
    assert worker.holds_nothing


async def test_items_that_do_not_fit_their_placeholder_or_the_model_are_refused(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("all")
    good = request(picture(1))
    features = good.features
    assert features is not None
    wrong_length = msgspec.structs.replace(
        features, mm_placeholders={"image": [PlaceholderRange(1, 5)]}
    )
    audio = msgspec.structs.replace(
        features,
        mm_hashes={"audio": features.mm_hashes["image"]},
        mm_placeholders={"audio": features.mm_placeholders["image"]},
        kwargs_data={"audio": (features.kwargs_data or {})["image"]},
        mm_metadata=None,
    )
    not_base64 = msgspec.structs.replace(features, kwargs_data={"image": ["%%%"]})
    for bad, message in (
        (wrong_length, "its placeholder takes 5"),
        (audio, "modality 'audio' is not supported"),
        (not_base64, "not base64"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await tokens_of(worker, msgspec.structs.replace(good, features=bad))
    assert await tokens_of(worker, good), "and the worker still answers"


async def test_another_model_is_404_in_the_contracts_words(start_worker: StartWorker) -> None:
    worker = await start_worker("all")
    with pytest.raises(NotFound, match=r"The model `gpt` does not exist. Valid aliases: tiny\."):
        await tokens_of(worker, request([5], model="gpt"))


async def test_pixels_for_a_worker_without_a_tower_are_a_typed_400(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("prefill", vision=False)
    assert not worker.replica.has_vision
    with pytest.raises(InvalidRequest, match="no vision tower") as caught:
        await prefilled(worker, request(picture(1)))
    assert caught.value.param == "features.image.0"


async def test_a_legacy_request_with_pixels_is_prefilled_where_there_is_a_tower(
    start_worker: StartWorker,
) -> None:
    worker, all_ = await start_worker("prefill"), await start_worker("all")
    asked = request(text(1, 4), picture(1))
    reply = await prefilled(worker, asked)
    assert reply.deltas[0].token_ids == (await tokens_of(all_, asked))[:1]
    assert worker.metric("items_total", source="inline") == 1
    assert worker.metric("encoder_input_bytes_total", source="inline") > 0


async def test_each_role_refuses_calls_of_the_others(start_worker: StartWorker) -> None:
    encode, decode = await start_worker("encode"), await start_worker("decode")
    with pytest.raises(NotSupported, match="role encode"):
        await tokens_of(encode, request([5]))
    with pytest.raises(NotSupported, match="role encode"):
        await prefilled(encode, request([5]))
    with pytest.raises(NotSupported, match="role decode"):
        await decode.channel.call(ENCODE, EncodeCall("r", []), Deadline.after(5))


async def test_a_wrong_cluster_token_is_refused(start_worker: StartWorker) -> None:
    worker = await start_worker("decode", cluster_token="right")
    channel = RpcChannel(worker.replica.grpc, "wrong")
    with pytest.raises(Unauthorized):
        await channel.call(DESCRIBE, Empty(), Deadline.after(5))
    await channel.close()
    assert (await worker.channel.call(DESCRIBE, Empty(), Deadline.after(5))) == worker.replica


@pytest.mark.parametrize("role", ["all", "prefill_decode"])
async def test_a_caller_that_leaves_takes_its_request_along(
    start_worker: StartWorker, role: str
) -> None:
    worker = await start_worker(role)
    stream = worker.channel.stream(
        GENERATE, request(text(1), max_tokens=490, ignore_eos=True), Deadline.after(20)
    )
    await anext(stream)
    assert worker.metric("running_requests") == 1
    await stream.aclose()
    await worker.until_idle()
    assert worker.metric("requests_total", call="generate", outcome="aborted") == 1


async def test_a_deadline_that_passes_ends_the_request(start_worker: StartWorker) -> None:
    worker = await start_worker("all")
    with pytest.raises(DeadlineExceeded):
        await tokens_of(worker, request(text(1), max_tokens=490, ignore_eos=True), seconds=0.15)
    await worker.until_idle()


async def test_a_full_queue_is_429_before_any_work(start_worker: StartWorker) -> None:
    worker = await start_worker("all", max_num_seqs=1, max_queued_requests=1)
    long = request(text(1), max_tokens=490, ignore_eos=True)
    streams = [worker.channel.stream(GENERATE, long, Deadline.after(20)) for _ in range(2)]
    first = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await worker.until(running_requests=1, waiting_requests=1)
    with pytest.raises(Overloaded) as caught:
        await tokens_of(worker, request([5]))
    assert caught.value.retry_after is not None
    for waiting in first:
        waiting.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    await worker.until_idle()


async def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("all")
    asked = request(text(1), max_tokens=60, ignore_eos=True)
    stream = worker.channel.stream(GENERATE, asked, Deadline.after(20))
    tokens = list((await anext(stream)).token_ids)
    stopping = asyncio.create_task(worker.server.stop(drain_s=10))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await tokens_of(worker, request([5]))
    async for delta in stream:
        tokens += delta.token_ids
    assert len(tokens) == 60
    await stopping


async def test_missing_embeddings_are_a_retryable_error_that_names_them(
    start_worker: StartWorker,
) -> None:
    encode, prefill = await start_worker("encode"), await start_worker("prefill")
    good, bad = picture(1), picture(2)
    call = EncodeCall("r", [good.encode_item(), bad.encode_item()])
    reply = await encode.channel.call(ENCODE, call, Deadline.after(10))
    gone = msgspec.structs.replace(reply.items[1], key="gone", mac="")
    params = ec_params([reply.items[0], gone])
    asked = request(good, text(1, 3), bad, pixels=False, ec_transfer_params=params)
    with pytest.raises(InvalidRequest, match="not signed"):
        await prefilled(prefill, asked)
    await encode.server.stop()
    asked = request(good, text(1, 3), bad, pixels=False, ec_transfer_params=ec_params(reply.items))
    with pytest.raises(TransferError) as caught:
        await prefilled(prefill, asked)
    assert caught.value.retryable
    assert set(caught.value.items) <= {good.mm_hash, bad.mm_hash}
    assert caught.value.items
    await prefill.until_idle()


async def test_pixels_beside_a_lost_embedding_are_encoded_here(start_worker: StartWorker) -> None:
    encode, prefill = await start_worker("encode"), await start_worker("prefill")
    shown = picture(1)
    call = EncodeCall("r", [shown.encode_item()])
    reply = await encode.channel.call(ENCODE, call, Deadline.after(10))
    await encode.server.stop()
    asked = request(shown, text(1, 3), ec_transfer_params=ec_params(reply.items))
    assert (await prefilled(prefill, asked)).deltas
    assert prefill.metric("items_total", source="inline") == 1


async def test_an_embedding_is_fetched_once_for_prompts_that_share_it(
    start_worker: StartWorker,
) -> None:
    encode, worker = await start_worker("encode"), await start_worker("prefill_decode")
    shown = picture(1)
    reply = await encode.channel.call(
        ENCODE, EncodeCall("r", [shown.encode_item()]), Deadline.after(10)
    )
    params = ec_params(reply.items)
    for seed in (1, 2):
        asked = request(shown, text(seed, 3), pixels=False, ec_transfer_params=params)
        assert await tokens_of(worker, asked)
    assert worker.metric("items_total", source="ec") == 1
    assert worker.metric("items_total", source="cache") == 1
    bare = request(shown, text(3, 3), pixels=False, metadata=False, ec_transfer_params=params)
    assert await tokens_of(worker, bare), "metadata of an item seen before is known"


async def test_prefilled_blocks_wait_for_decode_and_are_freed_after_its_fetch(
    start_worker: StartWorker,
) -> None:
    prefill, decode = await start_worker("prefill"), await start_worker("decode")
    asked = request(text(1, 20), max_tokens=4, ignore_eos=True)
    reply = await prefilled(prefill, asked)
    assert prefill.metric("kv_blocks_used") == 2
    assert prefill.metric("kv_pinned_requests") == 1
    rest = msgspec.structs.replace(asked, kv_transfer_params=reply.kv_transfer_params)
    assert len(await tokens_of(decode, rest)) == 3
    await prefill.until_idle()
    await decode.until_idle()
    with pytest.raises(TransferError):
        await tokens_of(decode, rest)
    await decode.until_idle()


async def test_prefilled_blocks_that_nobody_wants_are_released(start_worker: StartWorker) -> None:
    prefill = await start_worker("prefill")
    reply = await prefilled(prefill, request(text(1, 20)))
    handoff = parse_kv_handoff(reply.kv_transfer_params or {})
    assert handoff is not None
    call = ReleaseCall([handoff.source.key, "unknown"])
    await prefill.channel.call(KV_RELEASE, call, Deadline.after(5))
    await prefill.until_idle()


async def test_blocks_of_another_layout_or_request_are_refused(start_worker: StartWorker) -> None:
    prefill = await start_worker("prefill")
    decode, other = await start_worker("decode"), await start_worker("decode", block_size=8)
    asked = request(text(1, 20))
    reply = await prefilled(prefill, asked)
    rest = msgspec.structs.replace(asked, kv_transfer_params=reply.kv_transfer_params)
    with pytest.raises(TransferError) as caught:
        await tokens_of(other, rest)
    assert caught.value.kind == "incompatible"
    with pytest.raises(InvalidRequest, match="of another request"):
        await tokens_of(decode, msgspec.structs.replace(rest, token_ids=text(1, 21)))
    malformed = msgspec.structs.replace(rest, kv_transfer_params={"triptych_kv": {"source": 1}})
    with pytest.raises(InvalidRequest, match="triptych_kv"):
        await tokens_of(decode, malformed)


async def test_the_status_stream_shows_load_and_its_end(start_worker: StartWorker) -> None:
    worker = await start_worker("all")
    statuses = worker.channel.stream(STATUS, Empty(), Deadline.after(20))
    assert (await anext(statuses)).running == 0
    stream = worker.channel.stream(
        GENERATE, request(text(1), max_tokens=490, ignore_eos=True), Deadline.after(20)
    )
    await anext(stream)

    async def until(running: int) -> ReplicaStatus:
        async for status in statuses:
            if status.running == running:
                return status
        raise AssertionError("the stream ended")

    busy = await until(1)
    assert busy.kv_free < busy.kv_total
    await stream.aclose()
    await until(0)
    await statuses.aclose()


async def test_a_request_that_the_model_cannot_compute_fails_alone(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await start_worker("all")
    runner = worker.server.parts.engine.runner
    assert runner is not None
    real = runner.run

    def breaks(step: object) -> object:
        chunks = getattr(step, "chunks", [])
        if any(chunk.sequence.tokens[0] == 66 for chunk in chunks):
            raise RuntimeError("no")
        return real(step)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "run", breaks)
    with pytest.raises(TriptychError, match="could not compute"):
        await tokens_of(worker, request([66, 5]))
    assert await tokens_of(worker, request([5, 66]))
    await worker.until_idle()


async def test_a_fault_of_the_scheduler_ends_what_runs_and_not_the_worker(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await start_worker("all")
    scheduler = worker.server.parts.scheduler
    assert scheduler is not None
    long = request(text(1), max_tokens=490, ignore_eos=True)
    stream = worker.channel.stream(GENERATE, long, Deadline.after(20))
    await anext(stream)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "schedule", lambda: 1 / 0)
        with pytest.raises(TriptychError, match="could not go on"):
            async for _ in stream:
                pass
    assert await tokens_of(worker, request([5, 66]))
    await worker.until_idle()


async def test_the_documents_minimal_descriptor_works_for_allowed_hosts(
    start_worker: StartWorker,
) -> None:
    encode = await start_worker("encode")
    worker = await start_worker(
        "prefill_decode",
        ec=EcConfig(capacity_bytes=2**20, threads=2, allowed_hosts=("127.0.0.1",)),
    )
    all_ = await start_worker("all")
    shown = picture(1)
    call = EncodeCall("r", [shown.encode_item()])
    item = (await encode.channel.call(ENCODE, call, Deadline.after(10))).items[0]
    minimal = {"mm_hash": item.mm_hash, "peer_host": "127.0.0.1", "peer_port": item.peer_port}
    params = {"ec_items": [minimal]}
    asked = request(shown, text(1, 3), pixels=False, ec_transfer_params=params)
    assert await tokens_of(worker, asked) == await tokens_of(all_, request(shown, text(1, 3)))
    strict = await start_worker("prefill_decode")
    with pytest.raises(InvalidRequest, match="not signed"):
        await tokens_of(strict, asked)
