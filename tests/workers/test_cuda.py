"""The same engine on a CUDA device; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from protocol.deadline import Deadline
from protocol.generate import GenerateRequest
from protocol.rpc import ENCODE, GENERATE, PREFILL, EncodeCall
from protocol.transfer import ec_params
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import picture, request, text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


async def tokens_of(worker: RunningWorker, asked: GenerateRequest) -> list[int]:
    stream = worker.channel.stream(GENERATE, asked, Deadline.after(60))
    return [token async for delta in stream for token in delta.token_ids]


async def test_float32_on_the_device_answers_as_on_the_cpu(start_worker: StartWorker) -> None:
    device, cpu = await start_worker("all", device="cuda"), await start_worker("all")
    for seed in range(4):
        asked = request(text(seed, 9), picture(seed), text(seed, 40), ignore_eos=True)
        assert await tokens_of(device, asked) == await tokens_of(cpu, asked)


async def test_a_request_split_over_the_device_is_as_if_on_one_worker(
    start_worker: StartWorker,
) -> None:
    encode = await start_worker("encode", device="cuda")
    prefill = await start_worker("prefill", device="cuda")
    decode = await start_worker("decode", device="cuda")
    whole = await start_worker("all", device="cuda")
    shown = picture(3)
    call = EncodeCall("r", [shown.encode_item()])
    encoded = await encode.channel.call(ENCODE, call, Deadline.after(60))
    asked = request(
        text(1, 9),
        shown,
        text(2, 40),
        pixels=False,
        ec_transfer_params=ec_params(encoded.items),
        ignore_eos=True,
    )
    reply = await prefill.channel.call(PREFILL, asked, Deadline.after(60))
    rest = request(
        text(1, 9), shown, text(2, 40), kv_transfer_params=reply.kv_transfer_params, ignore_eos=True
    )
    got = reply.deltas[0].token_ids + await tokens_of(decode, rest)
    alone = request(text(1, 9), shown, text(2, 40), ignore_eos=True)
    assert got == await tokens_of(whole, alone)
    await prefill.until_idle()
    await decode.until_idle()
