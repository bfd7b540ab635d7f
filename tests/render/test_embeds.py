"""Embeddings in place of media: with a tensor, by name, and what is refused."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from protocol.errors import InvalidRequest
from protocol.items import Tensor, decode
from protocol.replica import Replica
from render.checkpoint import open_checkpoint
from render.config import MediaConfig, RenderConfig
from render.embeds import EmbedRef, embed_item
from render.families.base import Checkpoint, Family
from render.families.qwen_vl import QwenVl
from render.server import RenderServer
from serving.rpc_client import RpcChannel
from tests.render.asking import METADATA, call, chat, image, render

ROWS = 35


def npy(array: Any) -> str:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return base64.b64encode(out.getvalue()).decode()


def part(grid: Any = (1, 10, 14), tensor: str | None = None, **fields: Any) -> dict[str, Any]:
    value = {"image_grid_thw": list(grid)} if isinstance(grid, tuple) else dict(grid)
    if tensor is not None:
        value["image_embeds"] = tensor
    return {"type": "image_embeds", "image_embeds": value, **fields}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(qwen3_vl: Path) -> AsyncIterator[tuple[RenderServer, Replica]]:
    config = RenderConfig(
        model=str(qwen3_vl),
        processes=1,
        enable_mm_embeds=True,
        media=MediaConfig(max_items={"image": 3}, max_download_bytes=2**20),
    )
    server = RenderServer(config)
    yield server, await server.start()
    await server.stop(0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: tuple[RenderServer, Replica]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server[1].http, timeout=30) as client:
        yield client


@pytest.mark.asyncio(loop_scope="module")
async def test_an_embedding_is_an_item_like_the_picture_that_it_is_of(
    http: httpx.AsyncClient,
) -> None:
    rows = np.random.default_rng(1).standard_normal((ROWS, 8)).astype(np.float16)
    body = chat(part(tensor=npy(rows)), image(), part(uuid="held-1"), "what is it?")
    answer = await render(http, body)
    features = answer["features"]
    assert [place["length"] for place in features["mm_placeholders"]["image"]] == [ROWS] * 3
    assert features["mm_metadata"]["image"] == [METADATA] * 3
    assert features["mm_hashes"]["image"][2] == "held-1"
    assert len(set(features["mm_hashes"]["image"])) == 3
    with_tensor, pixels, held = features["kwargs_data"]["image"]
    assert set(decode(base64.b64decode(held))) == {"image_grid_thw"}
    assert "pixel_values" in decode(base64.b64decode(pixels))
    item = decode(base64.b64decode(with_tensor))
    tensor = item["image_embeds"].data
    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.shape) == ("float16", (ROWS, 8))
    assert bytes(tensor.data) == rows.tobytes()
    again = await render(http, chat(part(tensor=npy(rows)), mm_payload="none"))
    assert again["features"]["mm_hashes"]["image"][0] == features["mm_hashes"]["image"][0]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        (part(), 400, "uuid"),
        (part(uuid="../x"), 400, "uuid"),
        (part((1, 10)), 400, "image_grid_thw"),
        (part((1, 10, 0)), 400, "image_grid_thw"),
        (part((1, 9, 14), uuid="a"), 400, "multiples of 2"),
        (part((1, 2**40, 2), uuid="a"), 400, "image_grid_thw"),
        (part({}, uuid="a"), 400, "image_grid_thw"),
        (part({"image_grid_thw": [1, 2, 2], "x": 1}, uuid="a"), 400, "nothing else"),
        (part(tensor=npy(np.zeros((3, 8), np.float32))), 400, "[3, 8]"),
        (part(tensor=npy(np.zeros(ROWS, np.float32))), 400, "shape"),
        (part(tensor=npy(np.zeros((ROWS, 8)))), 400, "float16 or float32"),
        (part(tensor=npy(np.array([{}], dtype=object))), 400, "damaged"),
        (part(tensor=base64.b64encode(pickle.dumps({"a": 1})).decode()), 400, "unpickled"),
        (part(tensor=npy(np.zeros((ROWS, 8), np.float32))[:80]), 400, "damaged"),
        (part(tensor="%%%"), 400, "base64"),
        (part(tensor="A" * 2_000_000), 413, "larger than"),
        ({"type": "image_embeds", "image_embeds": 5}, 400, "object or base64"),
        ({"type": "audio_embeds", "audio_embeds": {}}, 400, "does not take audio"),
        ({"type": "prompt_embeds", "prompt_embeds": "AAAA"}, 400, "prompt_embeds"),
    ],
)
async def test_what_cannot_be_used_says_why(
    http: httpx.AsyncClient, given: dict[str, Any], status: int, message: str
) -> None:
    answer = await http.post("/v1/chat/completions/render", json=chat("x", given))
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"].startswith("messages[0].content[1].")


@pytest.mark.asyncio(loop_scope="module")
async def test_our_own_pipeline_takes_none(server: tuple[RenderServer, Replica]) -> None:
    """What is published has a content hash; a client's name for it would be another's item."""
    channel = RpcChannel(server[1].grpc, "")
    with pytest.raises(InvalidRequest, match="itself") as caught:
        await call(channel, chat(part(uuid="held-1")))
    await channel.close()
    assert caught.value.param == "messages[0].content[0].image_embeds"


@pytest.mark.asyncio(loop_scope="module")
async def test_embeddings_count_as_items(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        "/v1/chat/completions/render", json=chat(*[part(uuid="a")] * 2, image(), image())
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "image")


def test_a_model_without_embeddings_names_the_part() -> None:
    class Other(Family):
        def load(self) -> None: ...

    checkpoint = Checkpoint("", {}, lambda _: 0, lambda _: "")
    ref = EmbedRef("image", {}, "a", "messages[0].content[0].image_embeds")
    with pytest.raises(InvalidRequest, match="takes no image embeddings") as caught:
        embed_item(Other(checkpoint), ref, "m", max_bytes=100, as_text=False)
    assert caught.value.param == ref.param


def test_videos_are_not_taken_as_embeddings(qwen3_vl: Path) -> None:
    with pytest.raises(ValueError, match="no video embeddings"):
        QwenVl(open_checkpoint(qwen3_vl)).embeds("video", {})
