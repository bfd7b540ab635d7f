from __future__ import annotations

import asyncio
import math

import pytest
import torch

from ec_connector.content import check_finite, check_rows, checksum
from ec_connector.torch_adapter import as_buffer
from protocol.deadline import Deadline
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, publish, until


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]
)
def test_a_value_that_is_not_finite_is_found_in_every_dtype(dtype: str) -> None:
    fine = torch.linspace(-400, 400, 64).to(getattr(torch, dtype))
    check_finite("h", as_buffer(fine), dtype)
    for value in (math.nan, math.inf, -math.inf):
        if dtype == "float8_e4m3fn" and math.isinf(value):
            continue  # it has no infinities
        broken = fine.clone()
        broken[63] = value
        with fails("invalid_content", "h"):
            check_finite("h", as_buffer(broken), dtype)


def test_integers_are_always_finite() -> None:
    check_finite("h", memoryview(b"\xff" * 64), "uint8")
    check_finite("h", memoryview(b"\xff" * 64), "int64")


def test_the_checksum_is_crc32c_whatever_the_length() -> None:
    assert checksum(memoryview(b"123456789")) == 0xE3069283
    data = bytearray(b"a" * (2**20 + 1))
    first = checksum(memoryview(data))
    data[-1] ^= 1
    assert checksum(memoryview(data)) != first


def test_rows_width_and_dtype_must_be_those_of_the_placeholder() -> None:
    check_rows("h", (4, 8), "float32", rows=4, width=8, expected_dtype="float32")
    for shape, dtype in (((3, 8), "float32"), ((4, 9), "float32"), ((4, 8), "bfloat16")):
        with fails("invalid_content", "h"):
            check_rows("h", shape, dtype, rows=4, width=8, expected_dtype="float32")


async def test_a_nan_is_an_error_at_the_encoder_and_for_those_who_wait(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    embedding = torch.zeros(4, 8)
    embedding[2, 3] = math.nan
    item = producer.expect("h", shape=(4, 8), dtype="float32")
    waiting = asyncio.create_task(fetched(consumer, item))
    entry = producer._holder.store.find(item.key)
    assert entry is not None
    await until(lambda: bool(entry.waiters))
    with fails("invalid_content", "h"):
        await producer.publish("h", as_buffer(embedding), shape=(4, 8), dtype="float32")
    with fails("invalid_content", "h"):
        await waiting
    assert producer.stats().entries == 0
    lenient = await make(check_finite=False)
    await lenient.publish("h", as_buffer(embedding), shape=(4, 8), dtype="float32")


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_bytes_that_changed_on_the_way_are_noticed(
    make: MakeConnector, transport: str
) -> None:
    producer = await make(transports=(transport,), checksum=True)
    consumer = await make(transports=(transport,))
    item = await publish(producer, 1, 2**21)
    assert await fetched(consumer, item) == content(1, 2**21)
    producer._memory.regions[0].buffer[2**20] ^= 1
    with fails("transport_failed", "hash-1"):
        await consumer.fetch_into(item, [memoryview(bytearray(2**21))], Deadline.after(10))
