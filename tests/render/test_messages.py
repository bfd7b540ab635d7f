"""Messages: the template's form, the media in order, and errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from protocol.errors import ClientError, InvalidRequest
from render.families.base import Placeholder
from render.literals import LiteralGuard
from render.messages import Conversation, MediaRef, parse

PLACEHOLDERS = {"image": Placeholder(5, "<image>")}
IMAGE = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}


def parsed(tokenizer: Tokenizer, *messages: dict[str, Any], form: Any = "openai") -> Conversation:
    literals = LiteralGuard(tokenizer, ["<|image_pad|>"]).literals()
    return parse(list(messages), PLACEHOLDERS, form, literals)


def test_parts_keep_their_order(tokenizer: Tokenizer) -> None:
    content = [{"type": "text", "text": "a"}, IMAGE, "b"]
    chat = parsed(tokenizer, {"role": "user", "content": content})
    assert chat.messages[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image"},
        {"type": "text", "text": "b"},
    ]
    assert chat.media == [MediaRef("image", "data:x", "messages[0].content[1].image_url")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "data:x"},
        {"image_url": "data:x"},
        {"image_url": {"url": "data:x"}},
        {"type": "input_image", "image_url": "data:x", "detail": "auto"},
        {"type": "image_url", "image_url": {"url": "data:x"}, "uuid": "abc"},
    ],
)
def test_every_form_of_an_image_part_is_taken(tokenizer: Tokenizer, part: dict[str, Any]) -> None:
    chat = parsed(tokenizer, {"role": "user", "content": [part]})
    assert [ref.url for ref in chat.media] == ["data:x"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "t"},
        {"type": "input_text", "text": "t"},
        {"type": "output_text", "text": "t"},
        {"type": "refusal", "refusal": "t"},
        {"type": "thinking", "thinking": "t"},
        {"text": "t"},
        "t",
    ],
)
def test_every_form_of_a_text_part_is_taken(tokenizer: Tokenizer, part: Any) -> None:
    chat = parsed(tokenizer, {"role": "user", "content": [part]})
    assert chat.messages[0]["content"] == [{"type": "text", "text": "t"}]


def test_a_string_template_gets_placeholders_in_front(tokenizer: Tokenizer) -> None:
    content = [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}]
    chat = parsed(tokenizer, {"role": "user", "content": content}, form="string")
    assert chat.messages[0]["content"] == "<image>\na\nb"


def test_tool_calls_get_objects_as_arguments(tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    chat = parsed(
        tokenizer,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}, "s"]},
    )
    assert chat.messages[0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert chat.messages[1] == {"role": "tool", "tool_call_id": "1", "content": "r\ns"}


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "42", "null", "", None, [1]])
def test_a_conversation_goes_on_after_arguments_that_are_no_object(
    tokenizer: Tokenizer, arguments: Any
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = parsed(tokenizer, {"role": "assistant", "tool_calls": [call]})
    assert chat.messages[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]},
            "messages[0].content[0].image_url",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]},
            "messages[0].content[0].image_url",
        ),
        (
            {"role": "user", "content": ["a", {"type": "video_url", "video_url": {"url": "x"}}]},
            "messages[0].content[1].video_url",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]},
            "messages[0].content[0].input_audio",
        ),
        (
            {"role": "user", "content": [{"type": "image_embeds", "image_embeds": "x"}]},
            "messages[0].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "uuid": "known"}]},
            "messages[0].content[0].image_url",
        ),
        ({"role": "user", "content": [{**IMAGE, "uuid": 1}]}, "messages[0].content[0].uuid"),
        ({"role": "user", "content": "x", "name": 1}, "messages[0].name"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
    ],
)
def test_a_fault_names_its_field(tokenizer: Tokenizer, message: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        parsed(tokenizer, message)
    assert caught.value.param == param


def test_no_messages_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(tokenizer)
    assert caught.value.param == "messages"
