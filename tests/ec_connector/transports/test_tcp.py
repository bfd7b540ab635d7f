from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_connector.allocator import ALIGNMENT
from ec_connector.transports.tcp import TcpTransport, _cut, stripes
from protocol.deadline import Deadline
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, is_clean, publish, until


@given(nbytes=st.integers(1, 10**7), count=st.integers(1, 9))
def test_stripes_make_up_the_item_and_begin_at_pages(nbytes: int, count: int) -> None:
    parts = stripes(nbytes, count)
    assert len(parts) == count
    end = 0
    for start, size in parts:
        assert start == end
        assert start % ALIGNMENT == 0 or size == 0
        end = start + size
    assert end == nbytes


@given(
    sizes=st.lists(st.integers(0, 20), max_size=6),
    start=st.integers(0, 60),
    size=st.integers(0, 60),
)
def test_a_cut_of_buffers_is_the_cut_of_their_bytes(
    sizes: list[int], start: int, size: int
) -> None:
    whole = bytes(range(sum(sizes)))
    buffers, offset = [], 0
    for length in sizes:
        buffers.append(memoryview(whole)[offset : offset + length])
        offset += length
    assert b"".join(_cut(buffers, start, size)) == whole[start : start + size]


@pytest.mark.parametrize("nbytes", [2**23, 13 * 2**20 + 5])
async def test_a_large_item_is_striped_over_several_connections(
    make: MakeConnector, nbytes: int
) -> None:
    producer, consumer = await make(), await make(tcp_streams=3)
    item = await publish(producer, 1, nbytes)
    for _ in range(3):
        assert await fetched(consumer, item, 20) == content(1, nbytes)
    assert len(producer._transports["tcp"]._routes) == nbytes // 2**22
    for delay in (0.0005, 0.002, 0.005):
        task = asyncio.create_task(fetched(consumer, item))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert await fetched(consumer, item, 20) == content(1, nbytes)
    await until(lambda: is_clean(producer))


async def test_connections_are_used_again_and_a_dead_one_is_replaced(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, 100_000)
    for _ in range(5):
        assert await fetched(consumer, item) == content(1, 100_000)
    transport = producer._transports["tcp"]
    assert len(transport._routes) == 1
    transport._drop(next(iter(transport._routes)))
    assert await fetched(consumer, item) == content(1, 100_000)
    assert len(transport._routes) == 1


async def test_small_items_come_with_the_answer(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    sizes = [1, 1000, TcpTransport.inlines, TcpTransport.inlines + 1]
    items = [await publish(producer, seed, size) for seed, size in enumerate(sizes)]
    routes = producer._transports["tcp"]._routes
    for seed, size in enumerate(sizes[:-1]):
        assert await fetched(consumer, items[seed]) == content(seed, size)
        into = [bytearray(size // 2), bytearray(size - size // 2)]
        await consumer.fetch_into(items[seed], [memoryview(i) for i in into], Deadline.after(5))
        assert b"".join(into) == content(seed, size)
    assert not routes
    assert await fetched(consumer, items[-1]) == content(3, sizes[-1])
    assert len(routes) == 1
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0


async def test_more_small_reads_at_once_than_answers_may_pile_up(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    nbytes = TcpTransport.inlines
    item = await publish(producer, 1, nbytes)
    assert await fetched(consumer, item) == content(1, nbytes)  # connected
    found = await asyncio.gather(*(fetched(consumer, item, 20) for _ in range(200)))
    assert found == [content(1, nbytes)] * 200
    assert producer._transports["tcp"]._routes  # for those that were too many
    await until(lambda: is_clean(producer))


async def test_an_answer_without_the_bytes_is_a_fault_of_the_transport(
    make: MakeConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = await make(), await make()
    item = await publish(producer, 1, 1000)
    monkeypatch.setattr(producer._transports["tcp"], "inlines", 10)
    with fails("transport_failed", "hash-1"):
        await fetched(consumer, item)
    await until(lambda: is_clean(producer))
    assert consumer.stats().used_bytes == 0
