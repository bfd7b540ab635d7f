from __future__ import annotations

from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.transfer import EcItem
from tests.ec_connector.child import content
from tests.ec_connector.conftest import MakeConnector
from tests.ec_connector.helpers import fails, fetched, until


class Released:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


SPANS = [(4096, 100), (0, 50), (50, 50), (8192, 3 * 2**20)]


async def offer(
    producer: EcConnector, released: Released, lease_s: float = 30.0
) -> tuple[EcItem, bytes]:
    buffer = producer.allocate(4 * 2**20)
    buffer[:] = content(9, 4 * 2**20)
    region = producer.register("kv", buffer)
    nbytes = sum(size for _, size in SPANS)
    item = producer.offer(
        "request-1", region, SPANS, shape=(nbytes,), dtype="uint8",
        lease_s=lease_s, on_release=released,
    )  # fmt: skip
    return item, b"".join(buffer[start : start + size] for start, size in SPANS)


async def test_an_offer_is_gathered_scattered_and_released_once(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    released = Released()
    item, expected = await offer(producer, released)
    target = bytearray(len(expected))
    view = memoryview(target)
    await consumer.fetch_into(item, [view[:70], view[70:]], Deadline.after(5))
    assert target == expected
    await until(lambda: released.times == 1)
    with fails("expired", "request-1"):
        await consumer.fetch_into(item, [view], Deadline.after(5))
    producer.retire([item.key])
    await producer.stop()
    assert released.times == 1


async def test_an_offer_survives_a_consumer_that_gives_up(make: MakeConnector) -> None:
    producer, consumer = await make(), await make()
    released = Released()
    item, expected = await offer(producer, released)
    with fails("invalid_content", "request-1"):
        await consumer.fetch_into(item, [memoryview(bytearray(10))], Deadline.after(5))
    await until(lambda: producer.stats().leases == 0)
    assert released.times == 0
    assert await fetched(consumer, item) == expected
    await until(lambda: released.times == 1)


async def test_an_offer_ends_with_its_time(make: MakeConnector) -> None:
    producer = await make()
    released = Released()
    await offer(producer, released, lease_s=0.05)
    await until(lambda: released.times == 1)
    assert producer.stats().offers == 0


async def test_a_retired_offer_is_released_when_its_reader_is_done(make: MakeConnector) -> None:
    producer = await make()
    released = Released()
    item, expected = await offer(producer, released)
    async with producer.fetch(item, Deadline.after(5)) as got:
        producer.retire([item.key])
        assert released.times == 0
        assert bytes(got.data) == expected
    await until(lambda: released.times == 1)


async def test_spans_outside_the_region_are_refused(make: MakeConnector) -> None:
    producer = await make()
    region = producer.register("kv", producer.allocate(4096))
    with fails("invalid_content", "r"):
        producer.offer("r", region, [(4000, 97)], shape=(97,), dtype="uint8", on_release=Released())
