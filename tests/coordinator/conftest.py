"""A coordinator over stub replicas, all in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

import httpx2 as httpx
import msgspec
import pytest

from coordinator.config import CoordinatorConfig
from coordinator.membership.pushed import PushedMembership
from coordinator.server import CoordinatorServer
from protocol.replica import Role
from tests.coordinator.stub_stages import Cluster, StubReplica
from tests.coordinator.stub_words import WordDerenderer, eventually

SPLIT: tuple[Role, ...] = ("render", "encode", "encode", "prefill", "decode")
FUSED: tuple[Role, ...] = ("render", "encode", "encode", "prefill_decode")
ALL: tuple[Role, ...] = ("render", "all")


class Stage:
    """A running coordinator, its replicas and a client."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.cluster = Cluster()
        self.replicas: list[StubReplica] = []
        self.membership = PushedMembership()
        self.server = CoordinatorServer(config, self.membership, WordDerenderer())
        self.client: httpx.AsyncClient

    def of(self, role: Role) -> list[StubReplica]:
        return [replica for replica in self.replicas if replica.role == role]

    async def add(self, *roles: Role, **options: Any) -> list[StubReplica]:
        added = [StubReplica(role, self.cluster, **options) for role in roles]
        for replica in added:
            await replica.start()
            self.replicas.append(replica)
        self.publish()
        return added

    async def remove(self, replica: StubReplica) -> None:
        self.replicas.remove(replica)
        self.publish()
        await replica.stop()

    def publish(self) -> None:
        for role in ("render", "encode", "prefill", "decode", "prefill_decode", "all"):
            self.membership.publish(role, [r.replica for r in self.of(role)])

    async def ready(self, count: int | None = None) -> None:
        expected = len(self.replicas) if count is None else count
        await eventually(lambda: sum(m.ready for m in self.server.pool.members()) == expected)

    async def chat(self, *parts: str, **options: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat_body(*parts, **options))

    async def quiet(self) -> None:
        """No call is in flight; what dead replicas held is gone with them."""
        pool = self.server.pool
        await eventually(lambda: not any(m.in_flight for m in pool.members()))
        await eventually(lambda: not self.server.admission.requests)

    async def idle(self) -> None:
        """Everything that requests took was given back."""
        cluster = self.cluster
        await eventually(
            lambda: (
                not (cluster.pixels or cluster.kv or cluster.running)
                and not any(m.in_flight for m in self.server.pool.members())
            )
        )


def chat_body(*parts: str, **options: Any) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": part.removeprefix("image:")}}
        if part.startswith("image:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return {"messages": [{"role": "user", "content": content}], **options}


def events(text: str) -> list[Any]:
    """The JSON of each server-sent event; the last one must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [msgspec.json.decode(line) for line in lines[:-1]]


Start: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[Stage]]


@contextlib.asynccontextmanager
async def running(
    roles: Sequence[Role], *, http: bool = False, **options: Any
) -> AsyncIterator[Stage]:
    """A stage whose replicas are ready.

    Args:
        roles: of the replicas.
        http: over a socket; else the client calls the application itself, which is faster but
            knows no disconnect.
        options: of CoordinatorConfig.
    """
    options = {"port": 0, "stage_wait_s": 20.0, "request_timeout_s": 60.0, **options}
    stage = Stage(CoordinatorConfig(**options))
    if http:
        stage.client = httpx.AsyncClient(base_url=await stage.server.start(), timeout=20)
    else:
        await stage.server.open()
        transport = httpx.ASGITransport(stage.server.asgi)
        stage.client = httpx.AsyncClient(transport=transport, base_url="http://coordinator")
    try:
        await stage.add(*roles)
        await stage.ready()
        yield stage
    finally:
        await stage.client.aclose()
        await (stage.server.stop(1.0) if http else stage.server.close())
        await asyncio.gather(*(replica.stop() for replica in stage.replicas))


@pytest.fixture
def start() -> Start:
    return running
