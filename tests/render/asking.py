"""Requests to a render server, and what its tests expect in common."""

from __future__ import annotations

import json
from typing import Any

import httpx

from protocol.deadline import Deadline
from protocol.generate import GenerateRequest
from protocol.rpc import RENDER, RenderCall, RenderEndpoint
from serving.rpc_client import RpcChannel
from tests.render.conftest import data_url, picture

METADATA = (
    "ga5pbWFnZV9ncmlkX3Rod4KkZGF0YZOlaW50NjSRA8cYAwEAAAAAAAAACgAAAAAAAAAOAAAAAAAAAKVmaWVsZJKnYmF0Y2hl"
    "ZIGra2VlcF9vbl9jcHXD"
)
"""`mm_metadata` of a 224x160 image, from the contract's worked example (wire-protocol §4.3)."""


def image(data: bytes | None = None) -> dict[str, Any]:
    url = data_url(picture() if data is None else data)
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


async def render(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post("/v1/chat/completions/render", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def call(
    channel: RpcChannel, body: dict[str, Any], endpoint: RenderEndpoint = "chat", **fields: Any
) -> list[GenerateRequest]:
    message = RenderCall(endpoint, json.dumps(body).encode(), "chatcmpl-1", **fields)
    return (await channel.call(RENDER, message, Deadline.after(30))).requests
