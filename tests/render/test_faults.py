"""Faults of clients, each answered with a 4xx that names the field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from protocol.replica import Replica
from serving.rpc_client import RpcChannel
from tests.render.asking import chat, image
from tests.render.conftest import picture

TOOLS = [{"type": "function", "function": {"name": "f"}}]

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "body"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "x"}, 400, "body.messages"),
        (chat("x", model="other"), 404, "model"),
        (chat("x", temperature=-1.0), 400, "temperature"),
        (chat("x", max_tokens=0), 400, "max_tokens"),
        (chat("x", logit_bias={"1": 2.0}), 400, "logit_bias"),
        (chat("x", response_format={"type": "yaml"}), 400, "response_format.type"),
        (chat("x", response_format={"type": "json_schema"}), 400,
         "response_format.json_schema.schema"),
        (chat("x", structured_outputs={"json_object": True, "regex": "a"}), 400,
         "structured_outputs"),
        (chat("x", structured_outputs={}), 400, "structured_outputs"),
        (chat("x", tools=TOOLS, tool_choice="any"), 400, "tool_choice"),
        (chat("x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}}), 400,
         "tool_choice.function.name"),
        (chat("x", chat_template="{{ 1 }}"), 400, "chat_template"),
        (chat("x", chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs.messages"),
        (
            chat("x", mm_processor_kwargs={"device": "cuda"}),
            400,
            "mm_processor_kwargs.device",
        ),
        (chat("x", tools=[]), 400, "tools"),
        (chat("x", tools=[{}]), 400, "tools[0].function"),
        (chat("x", tool_choice="auto"), 400, "tool_choice"),
        (chat("x", continue_final_message=True, add_generation_prompt=True), 400,
         "continue_final_message"),
        (chat("x", truncate_prompt_tokens=0), 400, "truncate_prompt_tokens"),
        (chat(image(), truncate_prompt_tokens=3), 400, "truncate_prompt_tokens"),
        (chat("word " * 3000), 400, "input_tokens"),
        (chat("w" * 500_000), 400, "input_tokens"),
        (chat(*[image()] * 5), 400, "image"),
        (chat("x", image(b"no image")), 400, "messages[0].content[1].image_url"),
        (chat(image(picture(1500, 1500))), 400, "messages[0].content[0].image_url"),
        (chat(image(picture(900, 2))), 400, "messages[0].content[0].image_url"),
        (chat({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), 400,
         "messages[0].content[0].image_url"),
        (chat({"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}), 400,
         "messages[0].content[0].image_url"),
        (chat({"type": "video_url", "video_url": {"url": "data:,"}}), 400,
         "messages[0].content[0].video_url"),
        (chat(image(), mm_processor_kwargs={"size": {"longest_edge": 2**70}}), 400,
         "messages[0].content[0].image_url"),
        (chat(image(), mm_processor_kwargs={"size": "huge"}), 400,
         "messages[0].content[0].image_url"),
        (chat("x", stream_options={"include_usage": True}), 400, "stream_options"),
        (chat("x", cache_salt="a/b"), 400, "cache_salt"),
        (chat("x", request_id="two words"), 400, "request_id"),
    ],
)  # fmt: skip
async def test_a_clients_fault_names_its_field(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await http.post("/v1/chat/completions/render", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"\xff", b'{"messages": ' + b"[" * 5000, b'{"messages": [{"role": "\\ud800"}]}',
     b'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f","x":'
     + b"[" * 400 + b"]" * 400 + b"}}]}"],
)  # fmt: skip
async def test_a_body_that_is_no_request_is_a_client_error(
    http: httpx.AsyncClient, content: bytes
) -> None:
    answer = await http.post(
        "/v1/chat/completions/render", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (200, 400), answer.text


async def test_a_body_beyond_the_limit_is_413(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions/render", json=chat("x" * 2**20))
    assert answer.status_code == 413


async def test_keys_guard_all_but_the_open_paths(replica: tuple[Replica, RpcChannel]) -> None:
    async with httpx.AsyncClient(base_url=replica[0].http) as stranger:
        for path in ("/health", "/live", "/ping", "/version", "/metrics"):
            assert (await stranger.get(path)).status_code == 200
        answer = await stranger.post("/v1/chat/completions/render", json=chat("x"))
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
        assert (await stranger.get("/v1/models")).status_code == 401
