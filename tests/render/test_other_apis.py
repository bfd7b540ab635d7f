"""Responses and Messages requests as chats, and errors in their own words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import ClientError, InvalidRequest
from render import anthropic, responses
from render.anthropic import MessagesRequest
from render.converted import Converted
from render.responses import ResponsesRequest


def of_responses(**fields: Any) -> Converted:
    return responses.to_chat(msgspec.convert(fields, ResponsesRequest))


def of_messages(**fields: Any) -> Converted:
    return anthropic.to_chat(msgspec.convert({"max_tokens": 9, **fields}, MessagesRequest))


def test_a_string_is_a_users_message_after_the_instructions() -> None:
    chat = of_responses(input="hi", instructions="be brief", max_output_tokens=5).chat
    assert chat.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert chat.max_completion_tokens == 5


def test_a_history_with_reasoning_and_calls_is_one_assistants_message() -> None:
    converted = of_responses(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "look"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "sun"},
            {"type": "message", "role": "assistant", "content": "It shines."},
        ]
    )
    messages = converted.chat.messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["reasoning"] == "look"
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["f", "g"]
    assert messages[2] == {"role": "tool", "tool_call_id": "1", "content": "sun"}
    assert converted.sources == ["input[0]", "input[2]", "input[4]", "input[5]"]


def test_the_summary_stands_in_for_hidden_reasoning() -> None:
    summary = [{"type": "summary_text", "text": "in short"}]
    chat = of_responses(input=[{"type": "reasoning", "summary": summary, "content": None}]).chat
    assert chat.messages == [{"role": "assistant", "content": "", "reasoning": "in short"}]


def test_tools_truncation_effort_and_logprobs() -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": True}
    chat = of_responses(
        input="x",
        tools=[tool],
        truncation="auto",
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    ).chat
    assert chat.tools == [
        {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    ]
    assert chat.truncate_prompt_tokens == -1
    assert chat.reasoning_effort == "low"
    assert (chat.logprobs, chat.top_logprobs) == (True, 3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].output"),
        ({"mm_payload": "all"}, "mm_payload"),
    ],
)
def test_what_responses_cannot_have_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        of_responses(**{"input": "x", **fields})
    assert caught.value.param == param


def test_the_refusal_of_a_stored_response_says_why() -> None:
    with pytest.raises(InvalidRequest, match="stores no responses"):
        of_responses(input="x", previous_response_id="resp_1")


def test_a_messages_request_with_everything() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    converted = of_messages(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: 1"},
            {"type": "text", "text": "Be brief."},
        ],
        messages=[
            {"role": "user", "content": [{"type": "image", "source": image}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "go on"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                ],
            },
        ],
        stop_sequences=["END"],
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "auto"},
        thinking={"type": "enabled", "budget_tokens": 9},
    )
    chat = converted.chat
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    assert chat.messages[0]["content"] == "Be brief."
    assert chat.messages[1]["content"][0]["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert chat.messages[2]["reasoning"] == "hm"
    assert chat.messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (chat.stop, chat.max_tokens, chat.tool_choice) == (["END"], 9, "auto")
    assert chat.chat_template_kwargs == {"enable_thinking": True}
    assert converted.sources[-2:] == ["messages[2]", "messages[2]"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
    ],
)
def test_what_messages_cannot_have_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        of_messages(**{"messages": [], **fields})
    assert caught.value.param == param


def test_an_error_of_the_chat_is_told_in_the_requests_own_fields() -> None:
    converted = of_responses(input=[{"role": "user", "content": "x"}], instructions="i")
    for inner, outer in [
        ("messages[1].content[0].image_url", "input[0].content[0].image_url"),
        ("messages[0].content", "instructions.content"),
        ("max_completion_tokens", "max_output_tokens"),
        ("temperature", "temperature"),
        (None, None),
    ]:
        with pytest.raises(InvalidRequest) as caught, converted.own_names():
            raise InvalidRequest("no", inner)
        assert caught.value.param == outer
