from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import Any

import pytest

from protocol.deadline import Deadline
from protocol.errors import TransferError
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, is_clean, publish, until

SHM: dict[str, Any] = {"transports": ("shm",)}
"""Reads in place, so the lease is held as long as the data is used."""


@pytest.mark.parametrize("nbytes", [1, 1000, 2**20, 2**20 + 1, 9 * 2**20 + 7])
async def test_an_item_arrives_as_it_was_published(make: MakeConnector, nbytes: int) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, nbytes)
    for _ in range(2):
        assert await fetched(consumer, item) == content(1, nbytes)
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0


async def test_data_is_invalid_after_the_context(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, 100)
    async with consumer.fetch(item, Deadline.after(5)) as got:
        kept = got.data
    with pytest.raises(ValueError, match="released"):
        bytes(kept)


async def test_a_process_reads_its_own_item_without_a_connection(make: MakeConnector) -> None:
    connector = await make()
    item = await publish(connector, 1, 3 * 2**20)
    assert await fetched(connector, item) == content(1, 3 * 2**20)
    parts = [bytearray(2**20), bytearray(2**21)]
    await connector.fetch_into(item, [memoryview(part) for part in parts], Deadline.after(5))
    assert b"".join(parts) == content(1, 3 * 2**20)
    assert len(connector._consumer.peers) == 0
    assert is_clean(connector)


async def test_an_item_is_scattered_into_buffers(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    nbytes = 5 * 2**20
    item = await publish(producer, 1, nbytes)
    parts = [bytearray(size) for size in (1, 2**20, 2**21, 7, 2**21 - 8)]
    with fails("invalid_content", "hash-1"):
        await consumer.fetch_into(item, [memoryview(parts[0])], Deadline.after(5))
    await consumer.fetch_into(item, [memoryview(part) for part in parts], Deadline.after(5))
    assert b"".join(parts) == content(1, nbytes)
    await until(lambda: is_clean(producer))


async def test_publishing_again_keeps_the_first_and_extends_it(make: MakeConnector) -> None:
    producer = await make()
    first = await publish(producer, 1, 100, lease_s=0.0)
    used = producer.stats().used_bytes
    second = await publish(producer, 1, 100)
    assert (first.key, producer.stats().used_bytes) == (second.key, used)
    assert second.expires_at > first.expires_at + 20
    with fails("invalid_content", "hash-1"):
        await publish(producer, 1, 101)


async def test_concurrent_publishes_of_one_item_write_it_once(make: MakeConnector) -> None:
    producer = await make()
    items = await asyncio.gather(*(publish(producer, 1, 4 * 2**20) for _ in range(4)))
    assert len({item.key for item in items}) == 1
    assert producer.stats().entries == 1


async def test_salts_separate_items(make: MakeConnector) -> None:
    producer = await make()
    await producer.publish("h", b"a", shape=(1,), dtype="uint8", salt="one")
    assert producer.held("h") is None
    assert producer.held("h", salt="one") is not None


async def test_held_describes_what_is_there(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    assert producer.held("hash-1") is None
    await publish(producer, 1, 10, lease_s=0.0)
    item = producer.held("hash-1")
    assert item is not None
    assert producer.stats().pinned == 1
    assert await fetched(consumer, item) == content(1, 10)


async def test_a_fetch_waits_for_an_item_that_is_being_encoded(make: MakeConnector) -> None:
    producer, consumer, other = await make(), await make(), await make()
    item = producer.expect("hash-1", shape=(100,), dtype="uint8")
    waiting = [
        asyncio.create_task(fetched(who, item)) for who in (consumer, consumer, other, producer)
    ]
    entry = producer._holder.store.find(item.key)
    assert entry is not None
    await until(lambda: len(entry.waiters) == 4)
    await publish(producer, 1, 100)
    assert await asyncio.gather(*waiting) == [content(1, 100)] * 4
    await until(lambda: is_clean(producer))


async def test_who_waits_for_an_encode_that_fails_gets_its_error(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = producer.expect("hash-1", shape=(100,), dtype="uint8")
    waiting = asyncio.create_task(fetched(consumer, item))
    await until(lambda: bool(producer._holder.store.find(item.key).waiters))  # type: ignore[union-attr]
    producer.fail("hash-1", TransferError("NaN", "invalid_content", ("hash-1",)))
    with fails("invalid_content", "hash-1"):
        await waiting
    assert producer.stats().entries == 0


async def test_an_encode_that_never_comes_is_missing_in_time(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = producer.expect("hash-1", shape=(100,), dtype="uint8", lease_s=0.3)
    with fails("missing", "hash-1"):  # before the deadline, because the expectation ended
        await fetched(consumer, item)
    item = producer.expect("hash-1", shape=(100,), dtype="uint8")
    began = time.monotonic()
    with fails("missing", "hash-1"):  # because the deadline comes
        await fetched(consumer, item, timeout_s=0.4)
    assert time.monotonic() - began < 0.5


async def test_a_waiting_fetch_that_is_cancelled_leaves_nothing(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = producer.expect("hash-1", shape=(100,), dtype="uint8")
    waiting = asyncio.create_task(fetched(consumer, item))
    entry = producer._holder.store.find(item.key)
    assert entry is not None
    await until(lambda: bool(entry.waiters))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not entry.waiters)
    await publish(producer, 1, 100)
    assert await fetched(consumer, item) == content(1, 100)
    await until(lambda: is_clean(producer))


async def test_a_retired_item_is_missing_once_evicted(make: MakeConnector) -> None:
    producer, consumer = await make(capacity_bytes=2**20), await make()
    item = await publish(producer, 1, 2**20)
    with fails("store_full", "hash-2"):
        await publish(producer, 2, 2**20)
    producer.retire([item.key, "unknown"])
    assert await fetched(consumer, item) == content(1, 2**20)
    await until(lambda: is_clean(producer))
    await publish(producer, 2, 2**20)
    with fails("missing", "hash-1"):
        await fetched(consumer, item)


async def test_an_item_gone_after_its_time_is_expired(make: MakeConnector) -> None:
    producer, consumer = await make(capacity_bytes=2**20), await make()
    item = await publish(producer, 1, 2**20, lease_s=0.01)
    await asyncio.sleep(0.02)
    await publish(producer, 2, 2**20)
    with fails("expired", "hash-1"):
        await fetched(consumer, item)


async def test_a_read_item_is_not_evicted(make: MakeConnector) -> None:
    producer, consumer = await make(capacity_bytes=2**20, **SHM), await make(**SHM)
    item = await publish(producer, 1, 2**20, lease_s=0.0)
    async with consumer.fetch(item, Deadline.after(5)) as got:
        with fails("store_full", "hash-2"):
            await publish(producer, 2, 2**20)
        assert bytes(got.data) == content(1, 2**20)
    await until(lambda: is_clean(producer))
    await publish(producer, 2, 2**20)


async def test_a_lease_is_renewed_while_it_is_used(make: MakeConnector) -> None:
    producer, consumer = await make(lease_s=0.3, **SHM), await make(**SHM)
    item = await publish(producer, 1, 100, lease_s=0.0)
    async with consumer.fetch(item, Deadline.after(5)):
        await asyncio.sleep(0.8)
        assert producer.stats().leases == 1
    await until(lambda: is_clean(producer))


async def test_what_was_read_under_a_lapsed_lease_is_refused(make: MakeConnector) -> None:
    producer, consumer = await make(lease_s=0.2, **SHM), await make(**SHM)
    item = await publish(producer, 1, 100, lease_s=0.0)
    with fails("expired", "hash-1"):
        async with consumer.fetch(item, Deadline.after(5)):
            time.sleep(0.5)  # noqa: ASYNC251 (a process that is stopped, or whose loop is blocked)
            await until(lambda: producer.stats().leases == 0)


async def test_a_consumer_that_is_gone_frees_its_leases(make: MakeConnector) -> None:
    producer, consumer = await make(**SHM), await make(**SHM)
    item = await publish(producer, 1, 100)
    with fails("expired", "hash-1"):
        async with consumer.fetch(item, Deadline.after(5)):
            assert producer.stats().leases == 1
            for peer in consumer._consumer.peers._open.values():
                peer.fail()
            await until(lambda: is_clean(producer))


async def test_a_fetch_cancelled_at_any_point_leaves_nothing(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    nbytes = 8 * 2**20
    item = await publish(producer, 1, nbytes)
    digest = hashlib.sha256(content(1, nbytes)).digest()
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.01):
        task = asyncio.create_task(fetched(consumer, item))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert hashlib.sha256(await fetched(consumer, item)).digest() == digest
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0
