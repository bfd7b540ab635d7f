"""The same request gives the same answer on every topology, alone and among others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from protocol.deadline import Deadline
from protocol.generate import GenerateRequest
from protocol.rpc import ENCODE, GENERATE, PREFILL, EncodeCall, EncodeItem, TokenDelta
from protocol.transfer import ec_params
from serving.rpc_client import RpcChannel
from tests.workers.conftest import StartWorker
from tests.workers.prompts import Picture, picture, request, text


@dataclass
class Said:
    """What one request was answered, per choice."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)

    def add(self, delta: TokenDelta) -> None:
        self.tokens.setdefault(delta.index, []).extend(delta.token_ids)
        if delta.logprobs is not None:
            values = [entry.logprob for entry in delta.logprobs.content]
            self.logprobs.setdefault(delta.index, []).extend(values)
        if delta.finish_reason is not None:
            self.finish[delta.index] = delta.finish_reason


Path_ = Callable[[GenerateRequest], Coroutine[Any, Any, Said]]


async def stream(channel: RpcChannel, asked: GenerateRequest, said: Said) -> Said:
    async for delta in channel.stream(GENERATE, asked, Deadline.after(60)):
        said.add(delta)
    return said


async def encoded(channel: RpcChannel, asked: GenerateRequest) -> GenerateRequest:
    """The request as prefill gets it: metadata and where the embeddings are, no pixels."""
    if asked.features is None:
        return asked
    items = [
        EncodeItem(ref.mm_hash, ref.modality, ref.placeholder.rows, text=ref.kwargs)
        for ref in asked.features.items()
    ]
    reply = await channel.call(ENCODE, EncodeCall("r", items), Deadline.after(60))
    return msgspec.structs.replace(
        asked,
        features=asked.features.without_kwargs(),
        ec_transfer_params=ec_params(reply.items),
    )


@pytest.fixture
async def paths(start_worker: StartWorker) -> dict[str, Path_]:
    """Topology -> how it serves a request."""
    roles = ("all", "encode", "prefill", "decode", "prefill_decode")
    workers = dict(zip(roles, [await start_worker(role) for role in roles], strict=True))
    channels = {role: worker.channel for role, worker in workers.items()}

    async def colocated(asked: GenerateRequest) -> Said:
        return await stream(channels["all"], asked, Said())

    async def e_pd(asked: GenerateRequest) -> Said:
        ready = await encoded(channels["encode"], asked)
        return await stream(channels["prefill_decode"], ready, Said())

    async def e_p_d(asked: GenerateRequest) -> Said:
        said = Said()
        ready = await encoded(channels["encode"], asked)
        reply = await channels["prefill"].call(PREFILL, ready, Deadline.after(60))
        for delta in reply.deltas:
            said.add(delta)
        if reply.kv_transfer_params is None:
            return said
        decode = msgspec.structs.replace(
            asked, features=None, kv_transfer_params=reply.kv_transfer_params
        )
        return await stream(channels["decode"], decode, said)

    return {"all": colocated, "E+PD": e_pd, "E+P+D": e_p_d}


def mixed(count: int) -> list[GenerateRequest]:
    """Greedy and seeded requests, with none to three pictures, of many lengths."""
    asked = []
    for n in range(count):
        parts: list[list[int] | Picture] = [text(n, 3 + 5 * (n % 4))]
        for k in range(n % 4):
            parts += [picture(10 * n + k, 2 + 2 * k, 4), text(n + k, 2)]
        params: dict[str, Any] = {"max_tokens": 4 + n % 5, "logprobs": 1}
        if n % 3 == 1:
            params |= {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": n}
        if n % 5 == 2:
            params |= {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 3}
        if n % 3 == 1 and n % 2 == 0:
            params |= {"n": 2}
        asked.append(request(*parts, **params))
    return asked


async def test_topology_and_company_do_not_change_answers(paths: dict[str, Path_]) -> None:
    """Tokens are identical and logprobs equal to 1e-4, alone and all at a time."""
    asked = mixed(12)
    expected = [await paths["all"](one) for one in asked]
    assert len({tuple(map(tuple, said.tokens.values())) for said in expected}) == len(asked)
    for name, path in paths.items():
        together = await asyncio.gather(*(path(one) for one in asked))
        for number, (want, got) in enumerate(zip(expected, together, strict=True)):
            assert got.tokens == want.tokens, f"{name}, request {number}"
            assert got.finish == want.finish
            for choice, values in want.logprobs.items():
                assert got.logprobs[choice] == pytest.approx(values, abs=1e-4), name


@pytest.mark.parametrize("name", ["all", "E+PD", "E+P+D"])
async def test_a_request_resumed_anywhere_goes_on_as_if_it_had_not_stopped(
    paths: dict[str, Path_], name: str
) -> None:
    """Seeded sampling with penalties: the draw of a step depends on (seed, choice, step) alone."""
    asked = request(
        text(1, 9),
        picture(5),
        text(2, 4),
        max_tokens=8,
        temperature=1.0,
        seed=3,
        frequency_penalty=0.4,
        ignore_eos=True,
    )
    whole = (await paths["all"](asked)).tokens[0]
    resumed = msgspec.structs.replace(asked, resume_token_ids=whole[:3])
    assert (await paths[name](resumed)).tokens[0] == whole[3:]


async def test_a_prompt_prefilled_in_chunks_gives_the_same_answer(
    paths: dict[str, Path_], start_worker: StartWorker
) -> None:
    chunked = await start_worker("all", max_num_batched_tokens=8, max_num_seqs=4)
    for asked in mixed(6):
        want = await paths["all"](asked)
        got = await stream(chunked.channel, asked, Said())
        assert got.tokens == want.tokens


async def test_a_cache_too_small_for_all_gives_the_same_answers(
    paths: dict[str, Path_], start_worker: StartWorker
) -> None:
    """Sequences are swapped out and come back with the same keys and values."""
    small = await start_worker("all", kv_bytes=11 * 12288, max_model_len=128)
    asked = [
        msgspec.structs.replace(
            one,
            sampling_params=msgspec.structs.replace(
                one.sampling_params, max_tokens=24, ignore_eos=True, min_tokens=0
            ),
        )
        for one in mixed(6)
    ]
    expected = [await paths["all"](one) for one in asked]
    together = await asyncio.gather(*(stream(small.channel, one, Said()) for one in asked))
    assert [said.tokens for said in together] == [said.tokens for said in expected]
    assert small.metric("preemptions_total") > 0
    await small.until_idle()


async def test_the_prefill_leg_of_a_finished_answer_offers_nothing(
    start_worker: StartWorker,
) -> None:
    prefill = await start_worker("prefill")
    asked = request(text(1, 5), max_tokens=1)
    reply = await prefill.channel.call(PREFILL, asked, Deadline.after(20))
    assert reply.kv_transfer_params is None
    assert reply.deltas[0].finish_reason == "length"
    await prefill.until_idle()
