"""A tiny Qwen3-VL checkpoint, a server of it, and pictures, shared by the tests of render."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from PIL import Image
from tokenizers import Tokenizer

from ec_connector.config import EcConfig
from protocol.replica import Replica
from render.config import MediaConfig, RenderConfig
from render.server import RenderServer
from serving.rpc_client import RpcChannel
from tests.render import checkpoints

TOKEN = "cluster token"
KEY = "api key"


@pytest.fixture(scope="session")
def qwen3_vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small files of a Qwen3-VL checkpoint."""
    return checkpoints.qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="session")
def tokenizer(qwen3_vl: Path) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_file(str(qwen3_vl / "tokenizer.json"))


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """An image file."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def picture(width: int = 224, height: int = 160, colour: str = "white") -> bytes:
    """A PNG of one colour."""
    return encoded(Image.new("RGB", (width, height), colour))


def data_url(data: bytes, kind: str = "image/png") -> str:
    """The data: URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(qwen3_vl: Path) -> AsyncIterator[RenderServer]:
    config = RenderConfig(
        model=str(qwen3_vl),
        served_model_name="tiny",
        processes=1,
        api_keys=(KEY,),
        cluster_token=TOKEN,
        max_body_bytes=2**20,
        ec=EcConfig(capacity_bytes=16 * 2**20),
        media=MediaConfig(max_items={"image": 4}, max_image_pixels=10**6),
        trust_request_mm_kwargs=True,
    )
    server = RenderServer(config)
    await server.start()
    yield server
    await server.stop(0.0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def replica(server: RenderServer) -> AsyncIterator[tuple[Replica, RpcChannel]]:
    assert server._replica is not None
    channel = RpcChannel(server._replica.grpc, TOKEN)
    yield server._replica, channel
    await channel.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http(replica: tuple[Replica, RpcChannel]) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=replica[0].http, headers=headers, timeout=30) as client:
        yield client
