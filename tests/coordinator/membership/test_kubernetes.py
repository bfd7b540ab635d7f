"""Replicas behind EndpointSlices, each a real gRPC server on an address of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from coordinator.membership.base import Snapshot
from coordinator.membership.endpoint_slices import Access, EndpointSlices
from coordinator.membership.kubernetes import KubernetesMembership
from protocol.deadline import Deadline
from protocol.replica import Replica, Role
from protocol.rpc import DESCRIBE, Empty
from serving.rpc_server import RpcServer
from tests.helm.endpoints import Pod, endpoint_slice
from tests.helm.fake_api_server import FakeApiServer

LABELS = {"triptych/discovery": "replicas"}
TOKEN = "secret"


class Process:
    """A process of a pod: serves DESCRIBE."""

    def __init__(self, address: str, port: int, replica_id: str, role: Role) -> None:
        self.replica = Replica(id=replica_id, role=role, grpc=f"{address}:{port}")
        self.asked = 0
        self._server = RpcServer(address, port, TOKEN)
        self._server.add_unary(DESCRIBE, self._describe)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _describe(self, _request: Empty, _deadline: Deadline) -> Replica:
        self.asked += 1
        return self.replica


class Cluster:
    """Pods, and the slice that lists them."""

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.pods: dict[str, Pod] = {}
        self.running: list[Process] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    async def start(self, address: str, replica_id: str, role: Role = "encode") -> Process:
        process = Process(address, self.port, replica_id, role)
        await process.start()
        self.running.append(process)
        return process

    def list(self, *pods: Pod) -> None:
        self.pods = {pod.address: pod for pod in pods}
        self.api.put(endpoint_slice("a", pods, {"grpc": self.port}, labels=LABELS))

    def membership(self, token: str = TOKEN) -> KubernetesMembership:
        slices = EndpointSlices(
            Access(self.api.url, "prod", Path("/nonexistent")), "triptych/discovery=replicas"
        )
        return KubernetesMembership(slices, token, retry_s=0.05, recheck_s=0.1)


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


@pytest.fixture
async def cluster(api: FakeApiServer) -> AsyncIterator[Cluster]:
    made = Cluster(api)
    yield made
    for process in made.running:
        await process.stop()


class Reader:
    """Reads snapshots until one has the wanted replicas."""

    def __init__(self, snapshots: AsyncIterator[Snapshot]) -> None:
        self._snapshots = snapshots

    async def until(self, *ids: str) -> Snapshot:
        async with asyncio.timeout(5):
            while True:
                snapshot = await anext(self._snapshots)
                if sorted(replica.id for replica in snapshot) == sorted(ids):
                    return snapshot


async def test_pods_come_and_go(cluster: Cluster) -> None:
    """Scale up, scale down, scale to nothing."""
    one, two = Pod("127.77.0.1", "1"), Pod("127.77.0.2", "2")
    await cluster.start(one.address, "r1")
    await cluster.start(two.address, "r2", "decode")
    cluster.list(one)
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        found = await reader.until("r1")
        assert found[0].role == "encode"
        assert found[0].grpc == f"127.77.0.1:{cluster.port}"
        cluster.list(one, two)
        assert {replica.role for replica in await reader.until("r1", "r2")} == {"encode", "decode"}
        cluster.list(two)
        await reader.until("r2")
        cluster.list()
        await reader.until()


async def test_a_pod_is_used_while_it_is_ready(cluster: Cluster) -> None:
    await cluster.start("127.77.0.1", "r1")
    cluster.list(Pod("127.77.0.1", "1", ready=False))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        assert await reader.until() == ()
        cluster.list(Pod("127.77.0.1", "1"))
        await reader.until("r1")
        cluster.list(Pod("127.77.0.1", "1", ready=False, terminating=True))
        await reader.until()


async def test_a_pod_that_takes_over_an_address_is_asked_who_it_is(cluster: Cluster) -> None:
    """The replacement of a pod may get the address of the one that is gone."""
    first = await cluster.start("127.77.0.1", "r1")
    cluster.list(Pod("127.77.0.1", "1"))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        await reader.until("r1")
        await first.stop()
        cluster.list()
        await reader.until()
        await cluster.start("127.77.0.1", "r2")
        cluster.list(Pod("127.77.0.1", "2"))
        await reader.until("r2")


async def test_a_process_restarted_within_its_pod_comes_back_under_its_new_id(
    cluster: Cluster,
) -> None:
    first = await cluster.start("127.77.0.1", "r1")
    cluster.list(Pod("127.77.0.1", "1"))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        await reader.until("r1")
        await first.stop()
        await cluster.start("127.77.0.1", "r2")
        await reader.until("r2")


async def test_a_pod_that_does_not_answer_holds_up_nobody(cluster: Cluster) -> None:
    await cluster.start("127.77.0.2", "r2")
    cluster.list(Pod("127.77.0.1", "1"), Pod("127.77.0.2", "2"))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        await reader.until("r2")
        await cluster.start("127.77.0.1", "r1")
        await reader.until("r1", "r2")


async def test_one_replica_with_two_addresses_is_listed_once(cluster: Cluster) -> None:
    """Two slices, as a dual-stack Service has them."""
    await cluster.start("127.77.0.1", "r1")
    await cluster.start("127.77.0.2", "r1")
    cluster.list(Pod("127.77.0.1", "1"), Pod("127.77.0.2", "1"))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        found = await Reader(snapshots).until("r1")
        assert len(found) == 1


async def test_a_wrong_cluster_token_finds_nobody(cluster: Cluster) -> None:
    process = await cluster.start("127.77.0.1", "r1")
    cluster.list(Pod("127.77.0.1", "1"))
    async with aclosing(cluster.membership("wrong").snapshots()) as snapshots:
        assert await Reader(snapshots).until() == ()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(snapshots)
    assert process.asked == 0


async def test_replicas_stay_while_the_api_server_is_away(
    api: FakeApiServer, cluster: Cluster
) -> None:
    await cluster.start("127.77.0.1", "r1")
    cluster.list(Pod("127.77.0.1", "1"))
    async with aclosing(cluster.membership().snapshots()) as snapshots:
        reader = Reader(snapshots)
        await reader.until("r1")
        api.refuse(503)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(snapshots)
