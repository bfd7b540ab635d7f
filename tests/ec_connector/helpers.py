"""What the tests of connectors have in common."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.transfer import EcItem
from tests.ec_connector.child import content


async def publish(connector: EcConnector, seed: int, nbytes: int, lease_s: float = 30.0) -> EcItem:
    return await connector.publish(
        f"hash-{seed}", content(seed, nbytes), shape=(nbytes,), dtype="uint8", lease_s=lease_s
    )


async def fetched(connector: EcConnector, item: EcItem, timeout_s: float = 5.0) -> bytes:
    async with connector.fetch(item, Deadline.after(timeout_s)) as got:
        assert got.data.readonly
        assert (got.shape, got.dtype) == (item.shape, item.dtype)
        return bytes(got.data)


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for what a peer does on its own."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


@contextlib.contextmanager
def fails(kind: str, *items: str) -> Iterator[None]:
    """What is inside raises a TransferError of this kind about these items."""
    with pytest.raises(TransferError) as caught:
        yield
    assert (caught.value.kind, caught.value.items) == (kind, items), caught.value


def is_clean(connector: EcConnector) -> bool:
    stats = connector.stats()
    return (stats.leases, stats.offers) == (0, 0)


def open_things() -> tuple[int, int]:
    """Descriptors of this process, and mappings of items' memory."""
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("memfd:triptych-ec")
