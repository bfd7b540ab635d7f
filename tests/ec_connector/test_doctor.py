from __future__ import annotations

import socket

import pytest

from ec_connector import bench, doctor
from ec_connector.config import EcConfig
from ec_connector.probe import probe_hash
from protocol.transfer import EcItem
from tests.ec_connector.conftest import TOKEN, MakeConnector
from tests.ec_connector.helpers import fails, fetched, until

CONFIG = EcConfig(cluster_token=TOKEN)


@pytest.mark.ucx
async def test_it_tells_what_reaches_a_peer_and_why_the_rest_does_not(make: MakeConnector) -> None:
    peer = await make(transports=("shm", "tcp"))
    found = await doctor.run("127.0.0.1", peer.port, CONFIG)
    by_name = {finding.transport: finding for finding in found.findings}
    assert found.reachable
    assert {"shm", "tcp"} == {name for name, finding in by_name.items() if finding.works}
    assert all(f.bytes_per_s > 0 and f.latency_s > 0 for f in by_name.values() if f.works)
    text = doctor.show(found)
    assert "GiB/s" in text
    assert by_name["shm"].in_place
    assert not by_name["tcp"].in_place
    (line,) = [line for line in text.splitlines() if "shm" in line.split()]
    assert "in place" in line  # a rate of what does not move would say nothing
    assert "triptych-probe" not in text
    assert all(f.reason in text for f in by_name.values() if not f.works)


@pytest.mark.ucx
async def test_a_wrong_token_and_a_dead_peer_are_named(make: MakeConnector) -> None:
    peer = await make()
    found = await doctor.run("127.0.0.1", peer.port, EcConfig(cluster_token="another"))
    assert not found.reachable
    assert "cluster token" in doctor.show(found)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = await doctor.run("127.0.0.1", port, CONFIG)
    assert not found.reachable
    assert doctor.show(found) == (
        f"nothing can be read from 127.0.0.1:{port}: peer 127.0.0.1:{port}: connection refused"
    )


async def test_the_bench_measures_each_case(make: MakeConnector) -> None:
    peer = await make()
    config = EcConfig(cluster_token=TOKEN, transports=("tcp",))
    found = await bench.run(
        "127.0.0.1", peer.port, config, sizes=(4096, 2**20), in_flight=(1, 3), seconds=0.01
    )
    assert [(f.nbytes, f.in_flight) for f in found] == [
        (4096, 1), (2**20, 1), (4096, 3), (2**20, 3)
    ]  # fmt: skip
    assert all(f.bytes_per_s > 0 and f.rounds >= 3 for f in found)
    assert bench.show(found).count("GiB/s") == 4


async def test_a_probe_is_zeros_evictable_and_at_most_half_of_the_store(
    make: MakeConnector,
) -> None:
    peer, reader = await make(), await make(allowed_hosts=("127.0.0.1",))

    def probe(nbytes: int) -> EcItem:
        return EcItem(probe_hash(nbytes), "127.0.0.1", peer.port, shape=(nbytes,), dtype="uint8")

    assert await fetched(reader, probe(1000)) == bytes(1000)
    await until(lambda: peer.stats().pinned == 0)
    with fails("store_full", probe_hash(2**25)):
        await fetched(reader, probe(2**25))
    with fails("store_full", probe_hash(0)):
        await fetched(reader, probe(0))
