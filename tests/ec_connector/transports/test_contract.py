"""One suite over every transport, through the whole public path."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import pytest

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, TransferError
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, is_clean, publish, until
from tests.ec_connector.transports_here import NAMES

pytestmark = pytest.mark.parametrize("transport", NAMES)


@pytest.mark.parametrize("nbytes", [1, 1000, 70_000, 2**20, 9 * 2**20 + 7])
async def test_an_item_arrives_as_it_was_published(
    make: MakeConnector, transport: str, nbytes: int
) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    first, second = await publish(producer, 1, nbytes), await publish(producer, 2, nbytes)
    assert first.transports == (transport,)
    for item, seed in ((first, 1), (second, 2), (first, 1)):
        assert await fetched(consumer, item) == content(seed, nbytes)
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0


async def test_many_at_once_do_not_mix(make: MakeConnector, transport: str) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    sizes = [1, 5000, 300_000, 2**20, 2**20 + 1, 2_500_000]
    items = [await publish(producer, seed, size) for seed, size in enumerate(sizes)]

    async def check(seed: int) -> None:
        assert await fetched(consumer, items[seed], 20) == content(seed, sizes[seed])

    await asyncio.gather(*(check(i % len(sizes)) for i in range(30)))
    await until(lambda: is_clean(producer))


async def test_an_offer_is_gathered_and_scattered(make: MakeConnector, transport: str) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    warm = await publish(producer, 1, 10)
    assert await fetched(consumer, warm) == content(1, 10)  # connected before the region is there
    source = producer.allocate(2**20)
    source[:] = content(3, 2**20)
    region = producer.register("kv", source)
    target = consumer.allocate(2**20)
    consumer.register("kv", target)
    spans = [(block * 4096, 4096) for block in (7, 3, 4, 200, 9)]
    released: list[bool] = []
    item = producer.offer(
        "request",
        region,
        spans,
        shape=(5, 4096),
        dtype="uint8",
        on_release=lambda: released.append(True),
    )
    into = [target[i * 8192 : i * 8192 + 2048] for i in range(10)]
    await consumer.fetch_into(item, into, Deadline.after(10))
    assert b"".join(into) == b"".join(source[start : start + size] for start, size in spans)
    await until(lambda: released == [True])
    into = []


async def test_plain_buffers_can_be_received_into(make: MakeConnector, transport: str) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    item = await publish(producer, 1, 3 * 2**20)
    target = bytearray(3 * 2**20)
    await consumer.fetch_into(item, [memoryview(target)], Deadline.after(10))
    assert target == content(1, 3 * 2**20)
    await until(lambda: is_clean(producer))


async def test_a_fetch_cancelled_at_any_point_leaves_nothing(
    make: MakeConnector, transport: str
) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    nbytes = 8 * 2**20
    item = await publish(producer, 1, nbytes)
    digest = hashlib.sha256(content(1, nbytes)).digest()
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.01):
        task = asyncio.create_task(fetched(consumer, item, 20))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert hashlib.sha256(await fetched(consumer, item, 20)).digest() == digest
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0


async def test_a_fetch_with_too_little_time_says_so_and_leaves_nothing(
    make: MakeConnector, transport: str
) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    item = await publish(producer, 1, 16 * 2**20)
    assert len(await fetched(consumer, item, 20)) == 16 * 2**20
    for timeout_s in (0.0005, 0.001, 0.002):
        with contextlib.suppress(TransferError, DeadlineExceeded):
            await fetched(consumer, item, timeout_s)
    await until(lambda: consumer.stats().used_bytes == 0, 30)  # reads that cannot be broken off end
    assert await fetched(consumer, item, 20) == content(1, 16 * 2**20)
    await until(lambda: is_clean(producer))


async def test_a_restarted_producer_is_read_again(make: MakeConnector, transport: str) -> None:
    producer = await make(transports=(transport,))
    consumer = await make(transports=(transport,))
    old = await publish(producer, 1, 2**20)
    assert await fetched(consumer, old) == content(1, 2**20)
    port = producer.port
    await producer.stop()
    again = await make(transports=(transport,), port=port)
    new = await publish(again, 2, 2**20)
    assert await fetched(consumer, new) == content(2, 2**20)
    with fails("expired", "hash-1"):
        await fetched(consumer, old)
