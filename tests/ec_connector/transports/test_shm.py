from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import pytest

from ec_connector.config import EcConfig
from ec_connector.regions import SharedMemory
from ec_connector.transports.shm import map_sealed, sweep
from protocol.deadline import Deadline
from protocol.errors import TransferError
from tests.ec_connector.child import content
from tests.ec_connector.conftest import TOKEN, MakeConnector
from tests.ec_connector.helpers import fails, fetched, publish
from tests.ec_connector.process import child


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_the_consumer_looks_at_the_producers_own_memory(make: MakeConnector) -> None:
    producer, consumer = await make(transports=("shm",)), await make(transports=("shm",))
    item = await publish(producer, 1, 4096)
    async with consumer.fetch(item, Deadline.after(5)) as got:
        producer._memory.regions[0].buffer[:4] = b"seen"  # the first entry is at the beginning
        assert bytes(got.data[:4]) == b"seen"
        with pytest.raises(TypeError):
            got.data[0] = 0
    assert consumer.stats().used_bytes == 0


async def test_a_killed_producer_leaves_its_readers_their_bytes(make: MakeConnector) -> None:
    consumer = await make(transports=("shm",))
    config = EcConfig(cluster_token=TOKEN, transports=("shm",), capacity_bytes=2**24)
    async with child(config) as producer:
        item = await producer.publish(1, 8 * 2**20)
        with fails("expired", "hash-1"):
            async with consumer.fetch(item, Deadline.after(5)) as got:
                await producer.kill()
                assert bytes(got.data) == content(1, 8 * 2**20)  # no SIGBUS


async def test_memory_that_is_not_from_us_falls_back_to_another_transport(
    make: MakeConnector,
) -> None:
    producer, consumer = (
        await make(transports=("shm", "tcp")),
        await make(transports=("shm", "tcp")),
    )
    region = producer.register("heap", memoryview(bytearray(b"0123456789")))
    item = producer.offer("r", region, [(2, 4)], shape=(4,), dtype="uint8", on_release=lambda: None)
    assert item.transports == ("tcp",)
    assert await fetched(consumer, item) == b"2345"


@pytest.mark.parametrize("field", ["boot", "namespace"])
async def test_another_host_or_pod_is_reached_by_tcp(
    make: MakeConnector, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    producer, consumer = (
        await make(transports=("shm", "tcp")),
        await make(transports=("shm", "tcp")),
    )
    item = await publish(producer, 1, 100_000)
    name = "_boot_id" if field == "boot" else "_network_namespace"
    capability = producer._transports["shm"].capability()
    monkeypatch.setattr(f"ec_connector.transports.shm.{name}", lambda: "another")
    monkeypatch.setattr(producer._transports["shm"], "capability", lambda: capability)
    assert await fetched(consumer, item) == content(1, 100_000)
    assert await fetched(consumer, item) == content(1, 100_000)
    (peer,) = consumer._consumer.peers._open.values()
    assert list(peer._links) == ["tcp"]


async def test_a_shared_directory_serves_pods_and_is_swept(
    make: MakeConnector, tmp_path: Path
) -> None:
    settings = {"transports": ("shm",), "shm_dir": str(tmp_path)}
    config = EcConfig(cluster_token=TOKEN, capacity_bytes=2**20, **settings)  # type: ignore[arg-type]
    async with child(config) as dead:
        await dead.kill()
    assert len(names(tmp_path)) == 1
    producer, consumer = await make(**settings), await make(**settings)
    assert len(names(tmp_path)) == 2
    assert await fetched(consumer, await publish(producer, 1, 100)) == content(1, 100)
    await consumer.stop()
    await producer.stop()
    assert names(tmp_path) == set()


def test_the_sweep_keeps_the_living_and_the_foreign(tmp_path: Path) -> None:
    living = socket.socket(socket.AF_UNIX)
    living.bind(str(tmp_path / "triptych-ec-living"))
    living.listen()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "triptych-ec-dead"))
    dead.close()
    (tmp_path / "notes").write_text("mine")
    assert sweep(tmp_path) == 1
    assert names(tmp_path) == {"triptych-ec-living", "notes"}
    living.close()


def test_memory_that_could_shrink_or_has_another_size_is_not_mapped() -> None:
    unsealed = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(unsealed, mmap.PAGESIZE)
    with pytest.raises((TransferError, OSError)):
        map_sealed(unsealed, mmap.PAGESIZE)
    os.close(unsealed)
    memory = SharedMemory(1)
    with pytest.raises(TransferError, match="not sealed"):
        map_sealed(memory.fd, 2 * mmap.PAGESIZE)
    memory.close()


def test_nobody_else_can_write_or_truncate() -> None:
    memory = SharedMemory(mmap.PAGESIZE)
    for attempt in (
        lambda: os.ftruncate(memory.fd, 0),
        lambda: os.write(memory.fd, b"x"),
        lambda: mmap.mmap(memory.fd, mmap.PAGESIZE),
    ):
        with pytest.raises(OSError):
            attempt()
    memory.buffer[:2] = b"ok"
    memory.close()
