"""Faults: what the tests of killed, stopped and cut off processes have in common."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Iterator

import msgspec

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.transfer import EcItem
from tests.ec_connector.child import content
from tests.ec_connector.conftest import TOKEN
from tests.ec_connector.process import Child

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


@contextlib.asynccontextmanager
async def connector(
    transport: str = "tcp", fingerprint: str = "fp", **settings: object
) -> AsyncIterator[EcConnector]:
    made = EcConnector(config(transport, **settings), fingerprint)
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


async def at_rest(producer: Child, timeout_s: float = 20.0) -> None:
    """Wait until nobody reads from a process and nothing in its store is pinned."""
    end = time.monotonic() + timeout_s
    while (stats := await producer.call("stats"))["leases"] or stats["pinned"]:
        assert time.monotonic() < end, stats
        await asyncio.sleep(0.05)
