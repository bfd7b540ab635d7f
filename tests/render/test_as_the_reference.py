"""What vLLM's renderer does, found by `python -m interop`, each kind of it once."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from protocol.deadline import Deadline
from protocol.openai import ChatCompletionRequest
from render.config import RenderConfig
from render.features import Inline
from render.renderer import Renderer
from telemetry.render import RenderMetrics
from tests.render import checkpoints
from tests.render.asking import chat

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_given_id_of_a_responses_request_stands_as_it_is(http: httpx.AsyncClient) -> None:
    path = "/v1/responses/render"
    given = (await http.post(path, json={"input": "x", "request_id": "mine"})).json()
    assert given["request_id"] == "mine"
    fresh = (await http.post(path, json={"input": "x"})).json()
    assert fresh["request_id"].startswith("resp_")


async def test_a_stored_response_is_refused_with_the_type_of_the_contract(
    http: httpx.AsyncClient,
) -> None:
    body = {"input": "x", "previous_response_id": "resp_1"}
    error = (await http.post("/v1/responses/render", json=body)).json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["param"] == "previous_response_id"


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("chat/completions", chat("x", top_logprobs=3), "BadRequestError"),
        ("chat/completions", chat("x", tools=[{"type": "function"}]), "Bad Request"),
        ("chat/completions", {"messages": [{"content": "x"}]}, "Bad Request"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "Bad Request"),
        ("chat/completions", chat("x", truncate_prompt_tokens=-2), "Bad Request"),
        ("chat/completions", chat("x", response_format={"type": "poem"}), "Bad Request"),
        ("completions", {"prompt": [-1]}, "Bad Request"),
        ("completions", {}, "BadRequestError"),
        ("completions", {"prompt": [1, "a"]}, "Bad Request"),
    ],
)
async def test_wrong_values_and_wrong_forms_are_told_apart(
    http: httpx.AsyncClient, path: str, body: dict[str, object], kind: str
) -> None:
    answer = await http.post(f"/v1/{path}/render", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == kind


async def test_a_data_url_without_base64_is_not_implemented(http: httpx.AsyncClient) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}}
    answer = await http.post("/v1/chat/completions/render", json=chat(part))
    assert answer.status_code == 501
    assert answer.json()["error"]["type"] == "NotImplementedError"


@pytest.mark.parametrize(
    ("end", "fields", "ended"),
    [
        ("", {}, False),
        ("<think>\n", {}, False),
        ("<think>\n\n</think>\n", {}, True),
        ("<think>\n", {"include_reasoning": False}, True),
        ("", {"chat_template_kwargs": {"enable_thinking": False}}, True),
    ],
)
async def test_whether_the_prompt_has_ended_the_reasoning_is_told(
    tmp_path: Path, end: str, fields: dict[str, object], ended: bool
) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}" + end)
    config = RenderConfig(model="m", reasoning_parser="qwen3", chat_template=str(template))
    path = checkpoints.text_only(tmp_path)
    renderer = Renderer(config, path, RenderMetrics(CollectorRegistry()))
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], **fields)
    rendered = await renderer.chat(request, "id", Inline(), Deadline.after(30))
    assert rendered.reasoning_ended is ended
    assert rendered.sampling_params.skip_special_tokens is False


async def test_special_tokens_are_kept_for_a_tool_parser_where_there_are_tools(
    tmp_path: Path,
) -> None:
    config = RenderConfig(model="m", tool_parser="hermes", reasoning_parser="")
    path = checkpoints.text_only(tmp_path)
    renderer = Renderer(config, path, RenderMetrics(CollectorRegistry()))
    tool = {"type": "function", "function": {"name": "f"}}

    async def skips(**fields: object) -> bool:
        messages = [{"role": "user", "content": "x"}]
        request = ChatCompletionRequest(messages=messages, **fields)
        rendered = await renderer.chat(request, "id", Inline(), Deadline.after(30))
        return rendered.sampling_params.skip_special_tokens

    assert await skips()
    assert not await skips(tools=[tool])
    assert await skips(tools=[tool], tool_choice="none")
