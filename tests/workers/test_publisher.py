"""The encode call: once per item, waited for, checked, named when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import msgspec
import pytest
import torch

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from ec_connector.torch_adapter import from_buffer
from protocol import items
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TransferError
from protocol.rpc import ENCODE, EncodeCall, Encoded, EncodeItem
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import Picture, picture
from workers.adapters.base import EncoderInput
from workers.encoder import EncoderQueue


async def encode(worker: RunningWorker, *entries: EncodeItem, salt: str = "") -> Encoded:
    call = EncodeCall("r", list(entries), cache_salt=salt)
    return await worker.channel.call(ENCODE, call, Deadline.after(20))


async def rows_of(worker: RunningWorker, reply: Encoded, index: int = 0) -> torch.Tensor:
    connector = worker.server.parts.connector
    async with connector.fetch(reply.items[index], Deadline.after(5)) as fetched:
        return from_buffer(fetched.data, fetched.shape, fetched.dtype).clone()


async def start_encoder(start_worker: StartWorker) -> tuple[RunningWorker, EncoderQueue]:
    """A worker of the role, and the queue of its tower."""
    worker = await start_worker("encode")
    encoder = worker.server.parts.encoder
    assert encoder is not None
    return worker, encoder


def handle_free(shown: Picture) -> EncodeItem:
    return EncodeItem(shown.mm_hash, "image", shown.rows)


async def test_an_item_is_encoded_once_however_often_it_is_asked_for(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("encode")
    entry = picture(1).encode_item()
    replies = await asyncio.gather(*(encode(worker, entry) for _ in range(5)))
    again = await encode(worker, entry)
    assert worker.metric("encoded_items_total") == 1
    assert sorted(reply.reused[0] for reply in replies) == [False, True, True, True, True]
    assert again.reused == [True]
    assert again.items[0].key == replies[0].items[0].key
    assert again.items[0].shape == (6, 64)


async def test_another_salt_is_another_entry(start_worker: StartWorker) -> None:
    worker = await start_worker("encode")
    one = await encode(worker, picture(1).encode_item())
    other = await encode(worker, picture(1).encode_item(), salt="s")
    assert other.reused == [False]
    assert one.items[0].key != other.items[0].key


async def test_an_item_encoded_among_others_is_as_if_alone(start_worker: StartWorker) -> None:
    worker = await start_worker("encode")
    shown = [picture(n, 2 + 2 * (n % 3), 4) for n in range(6)]
    together = await encode(worker, *(p.encode_item() for p in shown))
    for index, one in enumerate(shown):
        alone = await encode(worker, one.encode_item(), salt="alone")
        torch.testing.assert_close(
            await rows_of(worker, together, index), await rows_of(worker, alone), atol=1e-5, rtol=0
        )


async def test_pixels_come_by_handle_from_another_process_store(start_worker: StartWorker) -> None:
    worker = await start_worker("encode")
    render = EcConnector(EcConfig(capacity_bytes=2**20, threads=2), "render")
    await render.start()
    try:
        shown = picture(3)
        data = items.encode(shown.item)
        handle = await render.publish("px", data, shape=(len(data),), dtype="uint8")
        by_handle = await encode(worker, EncodeItem("a", "image", shown.rows, handle=handle))
        inline = await encode(worker, EncodeItem("b", "image", shown.rows, data=data))
        text = items.encode_base64(shown.item)
        as_text = await encode(worker, EncodeItem("c", "image", shown.rows, text=text))
        expected = await rows_of(worker, inline)
        assert torch.equal(await rows_of(worker, by_handle), expected)
        assert torch.equal(await rows_of(worker, as_text), expected)
        assert worker.metric("encoder_input_bytes_total", source="handle") == shown.pixels.nbytes
        assert worker.metric("items_total", source="handle") == 1
        render.retire([handle.key])
        gone = msgspec.structs.replace(handle, expires_at=1.0, mac="")
        with pytest.raises((TransferError, InvalidRequest)):
            await encode(worker, EncodeItem("d", "image", shown.rows, handle=gone))
    finally:
        await render.stop()


async def test_float_pixels_are_normalised_like_raw_ones(start_worker: StartWorker) -> None:
    """Whatever dtype arrives (wire-protocol 4.6)."""
    worker = await start_worker("encode")
    shown = picture(3)
    floats = items.Tensor(
        "float32", shown.pixels.shape, memoryview(shown.pixels.astype("<f4").tobytes())
    )
    item = shown.item | {"pixel_values": items.Field(floats)}
    raw = await encode(worker, shown.encode_item())
    other = await encode(worker, EncodeItem("f", "image", shown.rows, data=items.encode(item)))
    torch.testing.assert_close(await rows_of(worker, raw), await rows_of(worker, other))


async def test_a_fetch_of_an_item_that_is_being_encoded_waits_for_it(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("encode")
    connector = worker.server.parts.connector
    shown = picture(4)
    expected = connector.expect(shown.mm_hash, shape=(6, 64), dtype="float32")
    fetching = asyncio.ensure_future(fetch(connector, expected))
    await encode(worker, shown.encode_item())
    assert (await fetching) == (6, 64)


async def fetch(connector: EcConnector, item: object) -> tuple[int, ...]:
    async with connector.fetch(item, Deadline.after(10)) as fetched:  # type: ignore[arg-type]
        return fetched.shape


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (EncodeItem("a", "image", 5, data=items.encode(picture(1).item)), "takes 5"),
        (EncodeItem("a", "image", 6, data=b"\x80"), "at least one field"),
        (EncodeItem("a", "image", 6, data=items.encode(picture(1).metadata)), "pixel_values"),
        (EncodeItem("a", "audio", 6, data=items.encode(picture(1).item)), "not supported"),
        (handle_free(picture(1)), "no pixels"),
    ],
    ids=["rows", "not an item", "no pixels in it", "modality", "nothing"],
)
async def test_an_item_that_cannot_be_encoded_is_400_and_the_worker_goes_on(
    start_worker: StartWorker, entry: EncodeItem, message: str
) -> None:
    worker = await start_worker("encode")
    with pytest.raises(InvalidRequest, match=message):
        await encode(worker, entry)
    good = picture(9)
    assert (await encode(worker, good.encode_item())).items[0].mm_hash == good.mm_hash
    retried = msgspec.structs.replace(good.encode_item(), mm_hash="a")
    assert (await encode(worker, retried)).reused == [False]


async def test_a_full_store_is_retryable_and_names_the_items(start_worker: StartWorker) -> None:
    worker = await start_worker("encode", ec=EcConfig(capacity_bytes=8192, threads=2))
    shown = [picture(n, 8, 8) for n in range(3)]
    with pytest.raises(TransferError) as caught:
        await encode(worker, *(p.encode_item() for p in shown))
    assert (caught.value.kind, caught.value.retryable) == ("store_full", True)
    assert set(caught.value.items) <= {p.mm_hash for p in shown}
    assert caught.value.items


async def test_values_that_are_not_finite_are_an_error_at_the_encoder(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, encoder = await start_encoder(start_worker)
    real = encoder.tower.encode

    def poisoned(inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        return [rows * float("nan") if len(rows) == 6 else rows for rows in real(inputs)]

    monkeypatch.setattr(encoder.tower, "encode", poisoned)
    bad, good = picture(1), picture(2, 4, 4)
    with pytest.raises(TransferError) as caught:
        await encode(worker, bad.encode_item(), good.encode_item())
    assert (caught.value.kind, caught.value.items) == ("invalid_content", (bad.mm_hash,))
    assert (await encode(worker, good.encode_item())).reused == [True]


async def test_one_item_that_breaks_the_tower_does_not_fail_the_others(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, encoder = await start_encoder(start_worker)
    real = encoder.tower.encode

    def fragile(inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        if any(item.layout.rows == 6 for item in inputs):
            raise RuntimeError("no")
        return real(inputs)

    monkeypatch.setattr(encoder.tower, "encode", fragile)
    good = picture(2, 4, 4)
    results = await asyncio.gather(
        encode(worker, picture(1).encode_item()),
        encode(worker, good.encode_item()),
        return_exceptions=True,
    )
    assert isinstance(results[0], Exception)
    assert isinstance(results[1], Encoded)


async def test_a_caller_that_leaves_does_not_take_the_item_from_the_others(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("encode")
    entry = picture(5).encode_item()
    leaving = asyncio.create_task(encode(worker, entry))
    staying = asyncio.create_task(encode(worker, entry))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).items[0].shape == (6, 64)
    await worker.until_idle()


async def test_what_the_tower_has_begun_is_kept_when_all_who_wanted_it_leave(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, encoder = await start_encoder(start_worker)
    real, begun, go_on = encoder.tower.encode, threading.Event(), threading.Event()
    batches = []

    def slow(inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        batches.append(len(inputs))
        begun.set()
        assert go_on.wait(20)
        return real(inputs)

    monkeypatch.setattr(encoder.tower, "encode", slow)
    entry = picture(6).encode_item()
    leaving = asyncio.create_task(encode(worker, entry))
    await asyncio.to_thread(begun.wait, 20)
    leaving.cancel()
    async with asyncio.timeout(10):
        while not worker.metric("requests_total", call="encode", outcome="aborted"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    again = asyncio.create_task(encode(worker, entry))
    go_on.set()
    assert (await again).reused == [True]
    assert batches == [1]
    await worker.until_idle()
