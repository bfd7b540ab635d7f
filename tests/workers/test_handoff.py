"""KV blocks through staging memory, as a cache in device memory needs it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.rpc import ENCODE, GENERATE, PREFILL, EncodeCall
from protocol.transfer import ec_params
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import picture, request, text
from workers import assembly
from workers.config import WorkerConfig, WorkerRole
from workers.engine import Engine
from workers.handoff import HostKvTransfer, StagedKvTransfer
from workers.kv_buffer import KvBuffer


@pytest.fixture
def _staged(monkeypatch: pytest.MonkeyPatch) -> None:
    def staged(
        config: WorkerConfig, connector: EcConnector, engine: Engine, kv: KvBuffer, digest: str
    ) -> StagedKvTransfer:
        return StagedKvTransfer(connector, engine, kv, config.kv_staging_bytes, digest)

    monkeypatch.setattr(assembly, "kv_transfer", staged)


async def tokens_of(worker: RunningWorker, asked: object) -> list[int]:
    stream = worker.channel.stream(GENERATE, asked, Deadline.after(20))  # type: ignore[arg-type]
    return [token async for delta in stream for token in delta.token_ids]


@pytest.mark.usefixtures("_staged")
async def test_a_request_handed_over_through_staging_memory_goes_on_as_if_alone(
    start_worker: StartWorker,
) -> None:
    prefill = await start_worker("prefill", kv_staging_bytes=8 * 12288)
    decode = await start_worker("decode", kv_staging_bytes=8 * 12288)
    asked = request(text(1, 30), picture(1), max_tokens=5, ignore_eos=True)
    alone = await tokens_of(await start_worker("all"), asked)
    for _ in range(4):  # more than fits at once: slots are given back
        reply = await prefill.channel.call(PREFILL, asked, Deadline.after(20))
        await prefill.until(kv_blocks_used=0)  # free on the device once copied out
        rest = msgspec.structs.replace(
            asked, features=None, kv_transfer_params=reply.kv_transfer_params
        )
        assert reply.deltas[0].token_ids + await tokens_of(decode, rest) == alone


@pytest.mark.usefixtures("_staged")
async def test_full_staging_memory_is_a_retryable_error_and_leaks_no_block(
    start_worker: StartWorker,
) -> None:
    prefill = await start_worker("prefill", kv_staging_bytes=2 * 12288)
    with pytest.raises(TransferError) as caught:
        await prefill.channel.call(PREFILL, request(text(1, 60)), Deadline.after(20))
    assert (caught.value.kind, caught.value.retryable) == ("store_full", True)
    await prefill.until_idle()


async def test_blocks_that_are_being_received_are_not_freed_by_an_abort(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transport may still write into them."""
    prefill, decode = await start_worker("prefill"), await start_worker("decode")
    generator = decode.server.parts.generator
    assert generator is not None
    received, go_on = asyncio.Event(), asyncio.Event()
    real = HostKvTransfer.fetch

    async def slowly(self: HostKvTransfer, *args: Any) -> None:
        received.set()
        await go_on.wait()
        await real(self, *args)

    monkeypatch.setattr(HostKvTransfer, "fetch", slowly)
    asked = request(text(1, 20), request_id="r1")
    reply = await prefill.channel.call(PREFILL, asked, Deadline.after(20))
    rest = msgspec.structs.replace(asked, kv_transfer_params=reply.kv_transfer_params)
    stream = decode.channel.stream(GENERATE, rest, Deadline.after(20))
    first = asyncio.ensure_future(anext(stream))
    await received.wait()
    generator.abort("r1")
    await decode.server.parts.engine.call(lambda: None)
    assert decode.metric("kv_blocks_used") == 2
    go_on.set()
    assert (await first).finish_reason == "abort"
    await decode.until_idle()
    await prefill.until_idle()


async def test_requests_that_come_and_go_at_random_leave_nothing_behind(
    start_worker: StartWorker,
) -> None:
    """Callers leave at every point of encode, prefill and decode."""
    roles: tuple[WorkerRole, ...] = ("encode", "prefill", "decode")
    workers = {role: await start_worker(role) for role in roles}
    chance = random.Random(5)

    async def one(number: int) -> None:
        shown = picture(number % 7)
        asked = request(text(number, 9), shown, max_tokens=12, ignore_eos=True)
        call = EncodeCall("r", [shown.encode_item()], cache_salt=str(number % 3))
        encoded = await workers["encode"].channel.call(ENCODE, call, Deadline.after(20))
        asked = msgspec.structs.replace(
            asked,
            features=asked.features and asked.features.without_kwargs(),
            ec_transfer_params=ec_params(encoded.items),
        )
        reply = await workers["prefill"].channel.call(PREFILL, asked, Deadline.after(20))
        rest = msgspec.structs.replace(asked, kv_transfer_params=reply.kv_transfer_params)
        await tokens_of(workers["decode"], rest)

    tasks = [asyncio.create_task(one(number)) for number in range(40)]
    for task in tasks:
        if chance.random() < 0.6:
            await asyncio.wait([task], timeout=chance.random() * 0.03)
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
    for worker in workers.values():
        await worker.until_idle()
        pool = worker.server.parts.pool
        if pool is not None:
            pool.check()
