"""Processes that are stopped for long and go on: SIGSTOP to a producer, and to a consumer.

The short stop shows what happens, the one of thirty seconds that it also happens in time and that
nothing wears out meanwhile: `-m "not slow"` leaves that one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from ec_connector.connector import EcConnector
from protocol.errors import TransferError
from protocol.transfer import EcItem
from tests.ec_connector.faults import (
    LOST,
    MIB,
    at_rest,
    config,
    connector,
    digest,
    digest_of,
    outcome,
    within,
)
from tests.ec_connector.helpers import fails, is_clean, open_things, publish, until
from tests.ec_connector.process import Child, child
from tests.ec_connector.transports_here import NAMES

pytestmark = pytest.mark.cluster

RIGHT = digest(1, 24 * MIB)
SECONDS = [2.0, pytest.param(30.0, marks=pytest.mark.slow)]

LATE_SOCKETS = 4
"""What UCX may still hold of endpoints that were closed under a message; it collects them late."""


async def remaining(since: float, seconds: float) -> None:
    """Wait until a stop that began then has lasted this long."""
    await asyncio.sleep(max(0.0, since + seconds - time.monotonic()))


async def stopped_producer(transport: str, seconds: float) -> None:
    async with connector(transport) as consumer, child(config(transport)) as producer:
        item = await producer.publish(1, 24 * MIB, lease_s=120.0)
        assert await digest_of(consumer, item, 10) == RIGHT
        descriptors, _ = open_things()
        reading = asyncio.create_task(digest_of(consumer, item, 1.0))
        await asyncio.sleep(0.002)
        stopped = time.monotonic()
        producer.signal(signal.SIGSTOP)
        with within(3):  # its deadline, and time for a busy machine
            assert await outcome(reading) in {RIGHT, *LOST}
        while time.monotonic() < stopped + seconds - 1:
            with pytest.raises(TransferError) as caught, within(3):
                await digest_of(consumer, item, 1.0)
            # The session is silent, or no data connection comes about: both are to be retried.
            assert caught.value.kind in {"peer_unreachable", "transport_failed"}
            assert caught.value.items == ("hash-1",)
        await remaining(stopped, seconds)
        producer.signal(signal.SIGCONT)
        with within(20):
            assert await digest_of(consumer, item, 20) == RIGHT
        await until(lambda: consumer.stats().used_bytes == 0, 20)
        if transport == "ucx":  # alone in this process
            await until(lambda: open_things()[0] <= descriptors + LATE_SOCKETS, 10)
        await producer.call("retire", keys=[item.key])
        await at_rest(producer)


async def reads_until_stopped(consumer: Child, item: EcItem, producer: EcConnector) -> None:
    """Have a process read in a loop and stop it while it holds a lease."""
    reading = asyncio.create_task(
        consumer.call("fetch_often", item=msgspec.to_builtins(item), times=10**6)
    )
    await until(lambda: producer.stats().leases == 1, 20)
    consumer.signal(signal.SIGSTOP)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading


async def stopped_consumer(transport: str, seconds: float) -> None:
    """Its lease ends in time, other bytes take the place, and it reads none of them as the item."""
    lease_s = 0.6
    async with (
        connector(transport, lease_s=lease_s, capacity_bytes=24 * MIB) as producer,
        child(config(transport, lease_s=lease_s)) as consumer,
    ):
        item = await publish(producer, 1, 24 * MIB, lease_s=0.0)
        arguments = {"item": msgspec.to_builtins(item)}
        assert await consumer.call("fetch", **arguments) == RIGHT
        await until(lambda: is_clean(producer))
        descriptors, _ = open_things()
        if transport == "shm":
            assert await consumer.call("hold", **arguments) == RIGHT
            consumer.signal(signal.SIGSTOP)
        else:
            await reads_until_stopped(consumer, item, producer)
        stopped = time.monotonic()
        with within(lease_s + 3):
            await until(lambda: producer.stats().pinned == 0 and is_clean(producer), 10)
        await publish(producer, 2, 24 * MIB, lease_s=0.0)  # where the other one was
        await remaining(stopped, seconds)
        consumer.signal(signal.SIGCONT)
        if transport == "shm":
            with fails("expired", "hash-1"):
                await consumer.call("let_go")
        with pytest.raises(TransferError) as caught, within(20):
            await consumer.call("fetch", **arguments)
        assert caught.value.kind in {"expired", "missing"}
        await until(lambda: is_clean(producer), 20)
        if transport == "ucx":  # alone in this process
            await until(lambda: open_things()[0] <= descriptors + LATE_SOCKETS, 10)
        end = time.monotonic() + 20
        while (await consumer.call("stats"))["used_bytes"]:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


OTHERS = [transport for transport in NAMES if transport != "ucx"]


@pytest.mark.parametrize("seconds", SECONDS)
async def test_a_producer_that_is_stopped(seconds: float, nothing_left: None) -> None:
    await asyncio.gather(*(stopped_producer(transport, seconds) for transport in OTHERS))


@pytest.mark.parametrize("seconds", SECONDS)
async def test_a_consumer_that_is_stopped(seconds: float, nothing_left: None) -> None:
    await asyncio.gather(*(stopped_consumer(transport, seconds) for transport in OTHERS))


@pytest.mark.skipif("ucx" not in NAMES, reason="needs ucx")
@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("scenario", [stopped_producer, stopped_consumer])
async def test_either_that_is_stopped_over_ucx(
    scenario: Callable[[str, float], Awaitable[None]], seconds: float
) -> None:
    """Alone, so that descriptors can be counted while the connector lives: UCX gives a dozen of a
    worker that broke a message off back with the process alone."""
    await scenario("ucx", seconds)
