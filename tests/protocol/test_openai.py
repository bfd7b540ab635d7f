"""The public requests: what is read, what is refused, what is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.openai import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatDerenderRequest,
    ChatMessage,
    CompletionDerenderRequest,
    CompletionRequest,
    refuse_unsupported,
)


def chat(**fields: Any) -> ChatCompletionRequest:
    return msgspec.convert({"messages": [], **fields}, ChatCompletionRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "a", **fields}, CompletionRequest)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": "hello"}, "Expected `array`"),
        ({"messages": [1]}, "Expected `object`"),
        ({"n": "two"}, "Expected `int | null`"),
        ({"mm_payload": "some"}, "Invalid enum value 'some'"),
    ],
)
def test_chat_bodies_outside_the_contract_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        chat(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_values_that_do_not_go_together_name_the_field(fields: dict[str, Any], param: str) -> None:
    """They are no matter of form, so the error is that of a value, as the reference has it."""
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", [[], None])
def test_a_completion_needs_a_prompt(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be given"):
        completion(prompt=prompt)


@pytest.mark.parametrize("prompt", [["a", 1], [1, [2]], [1.5], {"a": 1}])
def test_prompts_of_another_form_are_refused(prompt: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        completion(prompt=prompt)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_all_four_forms_of_a_prompt_are_read(prompt: Any) -> None:
    assert completion(prompt=prompt).prompt == prompt


def test_a_completion_has_sixteen_tokens_unless_it_says_otherwise() -> None:
    assert completion().max_tokens == 16
    assert chat().max_tokens is None


def test_unknown_keys_are_ignored() -> None:
    assert chat(surprise=1, metadata={"a": "b"}).messages == []


@pytest.mark.parametrize(
    ("cls", "table"),
    [(ChatCompletionRequest, CHAT_UNSUPPORTED), (CompletionRequest, COMPLETION_UNSUPPORTED)],
)
def test_the_refused_are_fields_of_the_schema_and_their_default_is_neutral(
    cls: type[msgspec.Struct], table: dict[str, tuple[Any, ...]]
) -> None:
    assert table.keys() <= set(cls.__struct_fields__)
    default = chat() if cls is ChatCompletionRequest else completion()
    for name, neutral in table.items():
        assert getattr(default, name) in neutral


@pytest.mark.parametrize("name", sorted(CHAT_UNSUPPORTED))
def test_chat_fields_that_are_not_honoured_are_refused_naming_them(name: str) -> None:
    values: dict[str, Any] = {
        "logit_bias": {"1": 1.0},
        "allowed_token_ids": [1],
        "bad_words": ["x"],
        "prompt_logprobs": 1,
        "use_beam_search": True,
        "priority": 1,
        "documents": [{"text": "x"}],
        "modalities": ["audio"],
        "echo": True,
    }
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(chat(**{name: values.get(name, {"a": 1})}))
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("best_of", 2), ("priority", 1)])
def test_completion_fields_that_are_not_honoured_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(completion(**{name: value}))
    assert caught.value.param == name


def test_a_chunk_leaves_out_what_brings_no_news() -> None:
    chunk = ChatCompletionChunk(
        id="c",
        created=1,
        model="m",
        choices=[ChatChunkChoice(index=0, delta=ChatDelta(content="red"))],
    )
    assert msgspec.to_builtins(chunk) == {
        "id": "c",
        "created": 1,
        "model": "m",
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "red"},
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
            }
        ],
    }


def test_a_message_without_tool_calls_has_no_such_key() -> None:
    assert "tool_calls" not in msgspec.to_builtins(ChatMessage(content="red circle"))


@pytest.mark.parametrize(
    ("cls", "body", "message"),
    [
        (ChatDerenderRequest, {}, "generate_response is required when stream is false"),
        (
            ChatDerenderRequest,
            {"stream": True},
            "generate_chunk is required when stream is true",
        ),
        (
            CompletionDerenderRequest,
            {"generate_responses": []},
            "generate_responses must not be empty",
        ),
        (
            CompletionDerenderRequest,
            {"stream": True},
            "generate_chunk is required when stream is true",
        ),
    ],
)
def test_derender_bodies_need_what_they_are_about(
    cls: type[msgspec.Struct], body: dict[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(body, cls)
    assert str(caught.value).startswith(message)
