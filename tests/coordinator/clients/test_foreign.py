"""Servers that are not ours, driven over the HTTP contract."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest

from coordinator.config import CoordinatorConfig
from coordinator.membership.static import StaticMembership
from coordinator.replicas import ReplicaPool
from coordinator.server import CoordinatorServer
from tests.coordinator.clients.foreign_server import ForeignServer
from tests.coordinator.stub_words import WordDerenderer, eventually, expected

PROMPT = [2, 9, 9, 9, 9, 30]


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


class Cluster:
    def __init__(
        self, servers: dict[str, ForeignServer], client: httpx.AsyncClient, pool: ReplicaPool
    ) -> None:
        self.servers = servers
        self.pool = pool
        self.client = client

    async def chat(self, **options: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hi"}], **options}
        return await self.client.post("/v1/chat/completions", json=body)


@contextlib.asynccontextmanager
async def cluster(*roles: str) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        servers: dict[str, ForeignServer] = {}
        stack.push_async_callback(_stop, servers)
        for role in roles:
            servers[role] = ForeignServer()
            await servers[role].start()
        membership = StaticMembership([f"{r}={s.url}" for r, s in servers.items()], "")
        config = CoordinatorConfig(port=0, served_model_name="m", stage_wait_s=20.0)
        coordinator = CoordinatorServer(config, membership, WordDerenderer())
        await coordinator.open()
        stack.push_async_callback(coordinator.close)
        transport = httpx.ASGITransport(coordinator.asgi)
        client = httpx.AsyncClient(transport=transport, base_url="http://coordinator")
        await stack.enter_async_context(client)
        await eventually(lambda: sum(m.ready for m in coordinator.pool.members()) == len(roles))
        yield Cluster(servers, client, coordinator.pool)


async def _stop(servers: dict[str, ForeignServer]) -> None:
    await asyncio.gather(*(server.stop() for server in servers.values()))


async def test_encode_and_prefill_decode() -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        answer = (await some.chat()).json()
        assert answer["choices"][0]["message"]["content"] == words(expected(PROMPT, 5))
        [encode] = some.servers["encode"].requests
        assert encode["features"]["kwargs_data"]["image"][0].startswith("gaF4")
        assert encode["token_ids"] == [0] * 4
        [generate] = some.servers["prefill_decode"].requests
        assert generate["features"]["kwargs_data"] is None
        assert generate["ec_transfer_params"]["a"]["peer_host"] == "h"
        assert "ec_items" not in generate["ec_transfer_params"]


async def test_prefill_and_decode_apart() -> None:
    async with cluster("render", "encode", "prefill", "decode") as some:
        answer = (await some.chat()).json()
        assert answer["choices"][0]["message"]["content"] == words(expected(PROMPT, 5))
        [prefill] = some.servers["prefill"].requests
        assert prefill["sampling_params"]["max_tokens"] == 1
        assert prefill["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
        }
        [decode] = some.servers["decode"].requests
        assert decode["kv_transfer_params"]["remote_engine_id"] == "e"
        assert decode["sampling_params"]["max_tokens"] == 5


async def test_an_embedding_that_nobody_promises_is_never_sent_metadata_only() -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        some.servers["encode"].evicted = True
        answer = await some.chat()
        assert answer.status_code == 200, answer.text
        [generate] = some.servers["prefill_decode"].requests
        assert generate["features"]["kwargs_data"] is not None


async def test_a_stream_that_ends_early_goes_on() -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        some.servers["prefill_decode"].cut_after = 2
        answer = (await some.chat(max_tokens=8)).json()
        assert answer["choices"][0]["message"]["content"] == words(expected(PROMPT, 8))
        again = some.servers["prefill_decode"].requests[-1]
        assert again["token_ids"] == [*PROMPT, *expected(PROMPT, 2)]
        assert again["sampling_params"]["max_tokens"] == 6


@pytest.mark.parametrize(
    ("status", "answered"), [(400, 400), (404, 404), (422, 422), (500, 500), (403, 503)]
)
async def test_what_the_server_answers_keeps_its_meaning(status: int, answered: int) -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        server = some.servers["prefill_decode"]
        server.status = status
        server.body = {"error": {"message": "internal details", "param": "token_ids"}}
        response = await some.chat()
        assert response.status_code == answered
        error = response.json()["error"]
        if status in (400, 404, 422):
            assert (error["message"], error["param"]) == ("internal details", "token_ids")
            assert len(server.requests) == 1
        else:
            assert "internal details" not in response.text


async def test_garbage_is_an_error_of_its_stage() -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        some.servers["encode"].status = 200
        some.servers["encode"].body = {"choices": "?"}
        response = await some.chat()
        assert response.status_code == 500
        assert response.json()["error"]["stage"] == "encode"


async def test_a_server_that_is_not_healthy_gets_nothing() -> None:
    async with cluster("render", "encode", "prefill_decode") as some:
        some.servers["encode"].healthy = False
        await eventually(lambda: sum(m.ready for m in some.pool.members()) == 2)
        assert (await some.client.get("/health")).json()["missing"] == ["encode"]
