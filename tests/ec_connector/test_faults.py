"""Real processes that are killed, stopped, restarted, cut off and interrupted.

After each fault: the right typed error within its deadline, never a wrong byte, and nothing left:
no lease, no pinned entry, no scratch memory, no descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.transfer import EcItem
from tests.ec_connector.child import content
from tests.ec_connector.conftest import TOKEN
from tests.ec_connector.helpers import fails, is_clean, publish, until
from tests.ec_connector.process import Child, child
from tests.ec_connector.transports_here import NAMES

pytestmark = pytest.mark.cluster

MIB = 2**20
LOST = {"peer_unreachable", "transport_failed", "expired"}
"""What a consumer may say of a producer that died under it."""


def config(transport: str = "tcp", **settings: object) -> EcConfig:
    defaults = {
        "cluster_token": TOKEN,
        "transports": [transport],
        "capacity_bytes": 64 * MIB,
        "threads": 4,
    }
    return msgspec.convert({**defaults, **settings}, EcConfig)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names alone)


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """The test leaves as many open descriptors as it found."""
    gc.collect()
    before = descriptors()
    yield
    gc.collect()
    await until(lambda: descriptors() <= before)


@contextlib.asynccontextmanager
async def connector(transport: str = "tcp", **settings: object) -> AsyncIterator[EcConnector]:
    made = EcConnector(config(transport, **settings), "fp")
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


async def digest_of(consumer: EcConnector, item: EcItem, timeout_s: float) -> str:
    async with consumer.fetch(item, Deadline.after(timeout_s)) as got:
        return hashlib.sha256(got.data).hexdigest()


async def outcome(reading: asyncio.Task[str]) -> str:
    """What was read, or the kind of error."""
    try:
        return await reading
    except TransferError as error:
        return error.kind


def digest(seed: int, nbytes: int) -> str:
    return hashlib.sha256(content(seed, nbytes)).hexdigest()


@pytest.mark.parametrize("transport", NAMES)
async def test_a_producer_killed_in_the_middle_of_a_read(
    transport: str, nothing_left: None
) -> None:
    async with connector(transport) as consumer:
        for delay in (0.001, 0.008):
            async with child(config(transport)) as producer:
                item = await producer.publish(1, 24 * MIB)
                right = digest(1, 24 * MIB)
                assert await digest_of(consumer, item, 20) == right  # connected and warm
                reading = asyncio.create_task(digest_of(consumer, item, 20))
                await asyncio.sleep(delay)
                producer.signal(signal.SIGKILL)
                assert await outcome(reading) in {right, *LOST}
                with pytest.raises(TransferError) as caught, within(20):
                    await digest_of(consumer, item, 20)
                assert caught.value.kind in LOST
            await until(lambda: consumer.stats().used_bytes == 0, 20)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_consumer_killed_while_it_reads(transport: str, nothing_left: None) -> None:
    async with connector(transport) as producer:
        item = await publish(producer, 1, 24 * MIB, lease_s=0.0)
        for _ in range(2):
            async with child(config(transport)) as consumer:
                call = "hold" if transport == "shm" else "fetch"
                reading = asyncio.create_task(consumer.call(call, item=msgspec.to_builtins(item)))
                await until(lambda: producer.stats().leases == 1, 20)
                consumer.signal(signal.SIGKILL)
                await until(lambda: is_clean(producer))
                with contextlib.suppress(asyncio.CancelledError, TransferError):
                    await reading
        assert producer.stats().pinned == 0
        await publish(producer, 2, 63 * MIB)  # the whole store can be had again


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_producer_that_is_stopped(transport: str, nothing_left: None) -> None:
    async with connector(transport) as consumer, child(config(transport)) as producer:
        item = await producer.publish(1, MIB)
        assert await digest_of(consumer, item, 10) == digest(1, MIB)
        producer.signal(signal.SIGSTOP)
        with fails("peer_unreachable", "hash-1"), within(1.5):
            await digest_of(consumer, item, 0.5)
        with fails("peer_unreachable", "hash-1"), within(1.5):
            await digest_of(consumer, item, 0.5)
        producer.signal(signal.SIGCONT)
        assert await digest_of(consumer, item, 10) == digest(1, MIB)
        await until(lambda: consumer.stats().used_bytes == 0)


async def test_a_consumer_that_is_stopped_loses_its_lease_and_learns_it(nothing_left: None) -> None:
    async with (
        connector("shm", lease_s=0.6, capacity_bytes=2 * MIB) as producer,
        child(config("shm", lease_s=0.6)) as consumer,
    ):
        item = await publish(producer, 1, 2 * MIB, lease_s=0.0)
        arguments = {"item": msgspec.to_builtins(item)}
        assert await consumer.call("hold", **arguments) == digest(1, 2 * MIB)
        consumer.signal(signal.SIGSTOP)
        with within(3):
            await until(lambda: producer.stats().pinned == 0)
        await publish(producer, 2, 2 * MIB, lease_s=0.0)  # where the other one was
        consumer.signal(signal.SIGCONT)
        with fails("expired", "hash-1"):
            await consumer.call("let_go")
        with pytest.raises(TransferError) as caught:
            await consumer.call("fetch", **arguments)
        assert caught.value.kind == "expired"


async def test_a_producer_restarted_on_the_same_port(nothing_left: None) -> None:
    async with connector() as consumer:
        async with child(config()) as first:
            old = await first.publish(1, MIB)
            assert await digest_of(consumer, old, 10) == digest(1, MIB)
        with fails("peer_unreachable", "hash-1"), within(3):
            await digest_of(consumer, old, 3)
        async with child(config(port=old.peer_port)) as second:
            new = await second.publish(1, MIB)  # the same item, in another life
            with fails("expired", "hash-1"):
                await digest_of(consumer, old, 10)
            assert await digest_of(consumer, new, 10) == digest(1, MIB)


async def test_a_store_full_of_pinned_entries_still_serves_them(nothing_left: None) -> None:
    async with connector() as consumer, child(config(capacity_bytes=4 * MIB)) as producer:
        items = [await producer.publish(seed, MIB) for seed in range(4)]
        with fails("store_full", "hash-9"):
            await producer.publish(9, MIB)
        for seed, item in enumerate(items):
            assert await digest_of(consumer, item, 10) == digest(seed, MIB)


async def test_an_entry_evicted_between_the_descriptor_and_the_read(nothing_left: None) -> None:
    async with connector() as consumer, child(config(capacity_bytes=2 * MIB)) as producer:
        item = await producer.publish(1, 2 * MIB, lease_s=0.0)
        await producer.publish(2, 2 * MIB)
        with fails("expired", "hash-1"):
            await digest_of(consumer, item, 10)


async def test_a_peer_of_another_model(nothing_left: None) -> None:
    async with connector() as consumer, child(config(), "another model") as producer:
        item = await producer.publish(1, MIB)
        with fails("incompatible", "hash-1"):
            async with consumer.fetch(item, Deadline.after(10), fingerprint="fp"):
                pass
        assert await digest_of(consumer, item, 10) == digest(1, MIB)  # who does not ask, gets it


async def test_a_corrupt_frame_ends_its_session_alone(nothing_left: None) -> None:
    async with connector() as consumer, child(config()) as producer:
        item = await producer.publish(1, MIB)
        assert await digest_of(consumer, item, 10) == digest(1, MIB)
        (peer,) = consumer._consumer.peers._open.values()
        peer.send_packed(b"\0\0\0\x10" + os.urandom(16))
        await until(lambda: not peer.is_open)
        assert await digest_of(consumer, item, 10) == digest(1, MIB)


async def test_bytes_that_change_in_memory_or_on_the_way_are_not_handed_on(
    nothing_left: None,
) -> None:
    async with connector(checksum=True) as producer, connector() as consumer:
        item = await publish(producer, 1, 100_000)
        byte = producer._memory.regions[0].buffer[50_000:50_001]
        byte[0] ^= 4
        with fails("transport_failed", "hash-1"):
            await digest_of(consumer, item, 10)
        byte[0] ^= 4
        assert await digest_of(consumer, item, 10) == digest(1, 100_000)
        byte.release()


def can_make_namespaces() -> bool:
    return (
        shutil.which("ip") is not None
        and os.geteuid() == 0
        and subprocess.run(
            ["ip", "netns", "add", "triptych-probe"], capture_output=True, check=False
        ).returncode
        == 0
        and subprocess.run(
            ["ip", "netns", "delete", "triptych-probe"], capture_output=True, check=False
        ).returncode
        == 0
    )


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str, str]]:
    """A namespace with an address of its own, linked to ours: (name, its address, our device)."""
    if not can_make_namespaces():
        pytest.skip("network namespaces are not permitted here")
    name, ours = f"triptych-{os.getpid()}", f"tri{os.getpid() % 100000}"
    commands = (
        f"ip netns add {name}",
        f"ip link add {ours} type veth peer name eth0 netns {name}",
        f"ip addr add 10.213.7.1/24 dev {ours}",
        f"ip link set {ours} up",
        f"ip -n {name} addr add 10.213.7.2/24 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
    )
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"{command}: {done.stderr.decode()}")
        yield name, "10.213.7.2", ours
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def set_link(device: str, state: str) -> None:
    subprocess.run(["ip", "link", "set", device, state], check=True)


async def test_a_link_that_is_cut(two_hosts: tuple[str, str, str], nothing_left: None) -> None:
    namespace, there, device = two_hosts
    async with connector(host="10.213.7.1", lease_s=1.0) as here:
        producer = await Child.start(
            config(host=there, lease_s=1.0), prefix=("ip", "netns", "exec", namespace)
        )
        try:
            item = await producer.publish(1, 8 * MIB)
            mine = await publish(here, 2, 8 * MIB, lease_s=0.0)
            assert await digest_of(here, item, 10) == digest(1, 8 * MIB)
            # The other side reads in a loop, so that some lease is open when the link goes.
            reading = asyncio.create_task(
                producer.call("fetch_often", item=msgspec.to_builtins(mine), times=200)
            )
            await until(lambda: here.stats().leases > 0, 20)
            set_link(device, "down")
            with pytest.raises(TransferError) as caught, within(2):
                await digest_of(here, item, 1)
            assert caught.value.kind in LOST
            with within(10):
                await until(lambda: is_clean(here), 10)
            set_link(device, "up")
            assert await digest_of(here, item, 20) == digest(1, 8 * MIB)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        finally:
            await producer.kill()


class Churn:
    """Reads of many items, a third of them broken off at some moment."""

    def __init__(self, consumer: EcConnector) -> None:
        self.consumer = consumer
        self.chance = random.Random(7)
        self.outcomes = {"right": 0, "aborted": 0, "missing": 0, "expired": 0}

    async def read(self, item: EcItem, right: str) -> None:
        limit = self.chance.uniform(0, 0.004) if self.chance.random() < 0.33 else 30
        try:
            async with asyncio.timeout(limit):
                found = await digest_of(self.consumer, item, 20)
        except TimeoutError:
            self.outcomes["aborted"] += 1
        except TransferError as error:
            self.outcomes[error.kind] += 1  # another kind is a KeyError
        else:
            assert found == right
            self.outcomes["right"] += 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_ten_thousand_reads_with_random_aborts(transport: str, nothing_left: None) -> None:
    """Publishes that evict one another, reads by twenty at a time."""
    async with (
        connector(transport) as consumer,
        child(config(transport, capacity_bytes=4 * MIB)) as producer,
    ):
        churn = Churn(consumer)
        for batch in range(10):
            nbytes, first = (512, 5000, 70_000)[batch % 3], batch * 50
            listed = await producer.call(
                "publish_many", first=first, count=50, nbytes=nbytes, lease_s=0.05
            )
            items = msgspec.convert(listed, list[EcItem])
            right = [digest(first + number, nbytes) for number in range(50)]
            for _ in range(50):
                chosen = [churn.chance.randrange(50) for _ in range(20)]
                await asyncio.gather(*(churn.read(items[i], right[i]) for i in chosen))
        assert sum(churn.outcomes.values()) == 10_000
        assert churn.outcomes["right"] > 1000
        assert churn.outcomes["aborted"] > 100
        await until(lambda: consumer.stats().used_bytes == 0, 20)
        end = time.monotonic() + 10
        while (stats := await producer.call("stats"))["leases"] or stats["pinned"]:
            assert time.monotonic() < end, stats
            await asyncio.sleep(0.05)
