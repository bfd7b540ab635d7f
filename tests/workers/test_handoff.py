"""KV blocks through staging memory, as a cache in device memory needs it."""

from __future__ import annotations

import msgspec
import pytest

from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.rpc import GENERATE, PREFILL
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import picture, request, text
from workers import assembly
from workers.config import WorkerConfig
from workers.engine import Engine
from workers.handoff import StagedKvTransfer
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
