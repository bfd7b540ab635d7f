"""A render server over gRPC: handles, releases, errors, and how it stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, SchemaViolation, Unauthorized, Unavailable
from protocol.items import Tensor, decode, decode_base64
from protocol.replica import Replica
from protocol.rpc import (
    DESCRIBE,
    RENDER_RELEASE,
    STATUS,
    Empty,
    ReleaseCall,
)
from render.config import RenderConfig
from render.server import RenderServer
from serving.rpc_client import RpcChannel
from tests.render.asking import METADATA, call, chat, image, render
from tests.render.conftest import TOKEN, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_our_own_callers_get_handles_instead_of_tensors(
    replica: tuple[Replica, RpcChannel], http: httpx.AsyncClient
) -> None:
    body = chat(image(), image(), image(picture(64, 64)), cache_salt="salt")
    (request,) = await call(replica[1], body)
    features = request.features
    assert features is not None
    assert features.kwargs_data is None
    assert features.kwargs_handles is not None
    handles = [handle for handle in features.kwargs_handles["image"] if handle is not None]
    assert len(handles) == 3
    assert handles[0] == handles[1] != handles[2]
    assert request.request_id == "chatcmpl-1"

    inline = (await render(http, body))["features"]["kwargs_data"]["image"]
    consumer = EcConnector(EcConfig(cluster_token=TOKEN), "another fingerprint")
    await consumer.start()
    try:
        for handle, text in zip(handles, inline, strict=True):
            async with consumer.fetch(handle, Deadline.after(5)) as fetched:
                item, same = decode(bytes(fetched.data)), decode_base64(text)
                for name, field in same.items():
                    assert isinstance(field.data, Tensor)
                    other = item[name].data
                    assert isinstance(other, Tensor)
                    assert bytes(other.data) == bytes(field.data.data)
    finally:
        await consumer.stop()


async def test_released_pixels_are_pinned_no_longer(
    server: RenderServer, replica: tuple[Replica, RpcChannel]
) -> None:
    (request,) = await call(replica[1], chat(image(picture(96, 96)), cache_salt="other"))
    assert request.features is not None
    assert request.features.kwargs_handles is not None
    before = server._ec.stats()
    keys = [h.key for h in request.features.kwargs_handles["image"] if h is not None]
    await replica[1].call(RENDER_RELEASE, ReleaseCall([*keys, "unknown"]), Deadline.after(5))
    assert server._ec.stats().pinned == before.pinned - 1


async def test_a_call_can_ask_for_inline_tensors(replica: tuple[Replica, RpcChannel]) -> None:
    (request,) = await call(replica[1], chat(image()), publish=False)
    assert request.features is not None
    assert request.features.kwargs_handles is None
    assert request.features.mm_metadata == {"image": [METADATA]}


async def test_a_batch_of_prompts_has_ids_of_its_own(replica: tuple[Replica, RpcChannel]) -> None:
    found = await call(replica[1], {"prompt": ["a", "b"]}, "completions")
    assert [request.request_id for request in found] == ["chatcmpl-1", "chatcmpl-1-1"]


async def test_errors_cross_the_call_whole(replica: tuple[Replica, RpcChannel]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await call(replica[1], chat(image(b"no image")))
    assert caught.value.param == "messages[0].content[0].image_url"
    with pytest.raises(SchemaViolation):
        await call(replica[1], {"messages": 5})


async def test_calls_need_the_cluster_token(replica: tuple[Replica, RpcChannel]) -> None:
    stranger = RpcChannel(replica[0].grpc, "wrong")
    try:
        with pytest.raises(Unauthorized):
            await stranger.call(DESCRIBE, Empty(), Deadline.after(5))
    finally:
        await stranger.close()


async def test_who_it_is_and_how_it_fares(replica: tuple[Replica, RpcChannel]) -> None:
    described, channel = replica
    assert await channel.call(DESCRIBE, Empty(), Deadline.after(5)) == described
    assert (described.role, described.model, described.max_model_len) == ("render", "tiny", 2048)
    async for status in channel.stream(STATUS, Empty(), Deadline.after(5)):
        assert status.ready
        assert status.store_capacity == 16 * 2**20
        break


async def test_a_server_that_stops_keeps_pixels_until_they_are_released(qwen3_vl: Path) -> None:
    server = RenderServer(RenderConfig(model=str(qwen3_vl), processes=1))
    replica = await server.start()
    channel = RpcChannel(replica.grpc, "")
    consumer = EcConnector(EcConfig(), "another fingerprint")
    await consumer.start()
    try:
        (request,) = await call(channel, chat(image()))
        assert request.features is not None
        assert request.features.kwargs_handles is not None
        (handle,) = request.features.kwargs_handles["image"]
        assert handle is not None
        stopping = asyncio.create_task(server.stop(30.0))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await call(channel, chat("x"))
        async with httpx.AsyncClient(base_url=replica.http) as client:
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/live")).status_code == 200
        async with consumer.fetch(handle, Deadline.after(5)) as fetched:
            assert len(fetched.data) == handle.nbytes
        await channel.call(RENDER_RELEASE, ReleaseCall([handle.key]), Deadline.after(5))
        await asyncio.wait_for(stopping, 20)
    finally:
        await channel.close()
        await consumer.stop()
