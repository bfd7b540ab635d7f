"""The coordinator over real replicas of the demo model, all in this process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from PIL import Image, ImageDraw

from coordinator.config import CoordinatorConfig
from coordinator.membership.pushed import PushedMembership
from coordinator.server import CoordinatorServer
from protocol.replica import Replica
from render.config import RenderConfig
from render.derender import HfDerenderer
from render.server import RenderServer
from tests.coordinator.conftest import events
from tests.coordinator.stub_words import eventually
from workers.config import WorkerConfig
from workers.server import WorkerServer

MODEL = str(Path(__file__).resolve().parents[2] / "deploy" / "demo_model")
PROMPT = "Describe this image."

pytestmark = pytest.mark.cluster


def picture(x: int) -> dict[str, Any]:
    image = Image.new("RGB", (96, 64), "white")
    ImageDraw.Draw(image).ellipse((x, 10, x + 40, 50), fill="red")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def body(*pictures: int, **options: Any) -> dict[str, Any]:
    content = [*(picture(x) for x in pictures), {"type": "text", "text": PROMPT}]
    base = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    return {"messages": [{"role": "user", "content": content}], **base, **options}


class Real:
    """Servers by replica id, and a client of their coordinator."""

    def __init__(self, coordinator: CoordinatorServer, client: httpx.AsyncClient) -> None:
        self.coordinator = coordinator
        self.client = client
        self.workers: dict[str, WorkerServer] = {}

    async def tokens(
        self, asked: dict[str, Any], after: Callable[[], None] | None = None
    ) -> dict[int, list[int]]:
        """Stream; `after` is called once tokens have come. Returns the tokens per choice."""
        path, json = "/v1/chat/completions", {**asked, "stream": True}
        text = ""
        async with self.client.stream("POST", path, json=json) as response:
            assert response.status_code == 200, await response.aread()
            async for part in response.aiter_text():
                text += part
                if after is not None and text.count("token_ids") > 8:
                    after()
                    after = None
        found: dict[int, list[int]] = {}
        for event in events(text):
            for choice in event["choices"]:
                found.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
        return found

    def kill_decode(self) -> asyncio.Task[None]:
        """End the decode replica that is at work, as if it had died."""
        [busy] = [m for m in self.coordinator.pool.members("decode") if m.in_flight]
        return asyncio.create_task(self.workers[busy.id].stop(0))


@contextlib.asynccontextmanager
async def serving(*roles: Any, **options: Any) -> AsyncIterator[Real]:
    membership = PushedMembership()
    async with contextlib.AsyncExitStack() as stack:
        render = RenderServer(RenderConfig(model=MODEL, http_port=0, grpc_port=0, processes=1))
        membership.publish("render", [await render.start()])
        stack.push_async_callback(render.stop, 0)
        replicas: list[Replica] = []
        workers: dict[str, WorkerServer] = {}
        for role in roles:
            worker = WorkerServer(
                WorkerConfig(
                    model=MODEL, role=role, http_port=0, grpc_port=0, dtype="float32", threads=1
                )
            )
            replicas.append(await worker.start())
            stack.push_async_callback(worker.stop, 0)
            workers[replicas[-1].id] = worker
        for role in set(roles):
            membership.publish(role, [r for r in replicas if r.role == role])
        config = CoordinatorConfig(port=0, **options)
        coordinator = CoordinatorServer(config, membership, HfDerenderer(MODEL))
        url = await coordinator.start()
        stack.push_async_callback(coordinator.stop, 1.0)
        client = httpx.AsyncClient(base_url=url, timeout=60)
        await stack.enter_async_context(client)
        count = len(roles) + 1
        await eventually(lambda: sum(m.ready for m in coordinator.pool.members()) == count)
        real = Real(coordinator, client)
        real.workers = workers
        yield real


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 1, "seed": 6, "n": 3}],
    ids=["greedy", "three choices"],
)
async def test_a_stream_goes_on_exactly_when_its_decode_replica_dies(
    options: dict[str, Any],
) -> None:
    async with serving("encode", "prefill", "decode", "decode") as real:
        undisturbed = await real.tokens(body(5, 40, **options))
        deaths: list[asyncio.Task[None]] = []
        again = await real.tokens(body(5, 40, **options), lambda: deaths.append(real.kill_decode()))
        await asyncio.gather(*deaths)
        assert deaths
        assert again == undisturbed
        assert all(len(tokens) == 40 for tokens in again.values())


async def test_overlap_changes_no_token_and_each_picture_is_encoded_once() -> None:
    answers = []
    for overlap in (True, False):
        async with serving("encode", "encode", "prefill_decode", overlap=overlap) as real:
            whole = await asyncio.gather(
                *(real.tokens(body(x, x + 20, max_tokens=8)) for x in (2, 12, 2))
            )
            answers.append(whole)
            text = (await real.client.get("/metrics")).text
            encoded = [
                line for line in text.splitlines() if line.startswith("triptych_items_total")
            ]
            assert 'triptych_items_total{how="encoded"} 4.0' in encoded
    assert answers[0] == answers[1]
