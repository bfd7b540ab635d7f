"""Forms of answers and forced calls on the wire, and that forced calls are what parsers find."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.errors import ClientError, InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from render import anthropic, responses
from render.anthropic import MessagesRequest
from render.parsers import reasoning, tools
from render.parsers.tools.base import ToolParser, merge
from render.responses import ResponsesRequest
from render.structured import form_of
from tests.render import checkpoints
from workers.grammar import Grammars

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": NOTHING}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
HERMES = tools.find("hermes")
FORCED = [name for name in tools.TABLE if name != "llama4_pythonic"]


def chat(**fields: Any) -> ChatCompletionRequest:
    return msgspec.convert({"messages": [], **fields}, ChatCompletionRequest)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "trip", "schema": SCHEMA, "strict": True}}},
            {"json": SCHEMA},
        ),
        (
            {"structured_outputs": {"regex": "a+", "_backend": "xgrammar"}},
            {"regex": "a+", "_backend": "xgrammar"},
        ),
        ({"tools": TOOLS, "tool_choice": "auto"}, None),
        ({"tools": TOOLS, "tool_choice": "none"}, None),
    ],
)  # fmt: skip
def test_a_form_goes_on_the_wire_as_structured_outputs(
    fields: dict[str, Any], form: dict[str, Any] | None
) -> None:
    assert form_of(chat(**fields), HERMES) == form
    if "tools" not in fields:
        assert form_of(CompletionRequest(prompt="x", **fields), None) == form


def test_a_structural_tag_is_text_on_the_wire() -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    form = form_of(chat(response_format=tag), None)
    assert form is not None
    assert json.loads(form["structural_tag"]) == tag


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "x"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
    ],
)
def test_a_form_that_is_none_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        form_of(chat(**fields), HERMES)
    assert caught.value.param == param


@pytest.mark.parametrize("parser", [None, tools.find("llama4_pythonic")])
def test_a_call_that_cannot_be_forced_says_why(parser: type[ToolParser] | None) -> None:
    with pytest.raises(InvalidRequest, match="tool parser") as caught:
        form_of(chat(tools=TOOLS, tool_choice="required"), parser)
    assert caught.value.param == "tool_choice"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forced")
    marks = {mark for name in tools.TABLE for mark in tools.find(name).tokens}
    checkpoints.byte_level(path, ["<|endoftext|>"], sorted(marks | {"<|constrain|>"}))
    return path / "tokenizer.json"


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_an_answer_under_a_forced_choice_is_calls_that_the_parser_finds(
    vocabulary: Path, name: str, choice: Any
) -> None:
    """Whatever is drawn under the grammar: names of the tools, arguments of their schemas."""
    tokenizer = Tokenizer.from_file(str(vocabulary))
    end = tokenizer.token_to_id("<|endoftext|>")
    grammars = Grammars(vocabulary, tokenizer.get_vocab_size(), [end])
    form = form_of(chat(tools=TOOLS, tool_choice=choice), tools.find(name))
    for seed in range(3):
        constraint = asyncio.run(grammars.constraints(form, [0]))[0]
        random, outputs = np.random.default_rng(seed), list[int]()
        while len(outputs) < 2000:
            allowed = np.flatnonzero(constraint.allowed(outputs))
            token = end if end in allowed else int(random.choice(allowed))
            if token == end:
                break
            outputs.append(token)
        text = tokenizer.decode(outputs, skip_special_tokens=False)
        if name == "gpt_oss":
            split = reasoning.find("gpt_oss")("")
            text = split.push(text).content + split.finish().content
        parser = tools.find(name)(TOOLS)
        found, last = parser.push(text), parser.finish()
        calls = merge([*found.calls, *last.calls])
        assert calls, text
        assert (found.content + last.content).strip() == "", text
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "weather":
                jsonschema.validate(arguments, SCHEMA)
            else:
                assert call["function"]["name"] == "now"
        if choice is NAMED:
            assert [call["function"]["name"] for call in calls] == ["weather"]


def test_other_apis_ask_for_the_same() -> None:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    asked = {
        "input": "x",
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    }
    made = responses.to_chat(msgspec.convert(asked, ResponsesRequest)).chat
    assert made.tool_choice == NAMED
    assert made.response_format == {
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA},
    }  # fmt: skip
    for choice, wanted in (
        ({"type": "any", "disable_parallel_tool_use": True}, "required"),
        ({"type": "tool", "name": "weather"}, NAMED),
    ):
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 5,
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": choice,
        }
        found = anthropic.to_chat(msgspec.convert(body, MessagesRequest)).chat
        assert found.tool_choice == wanted
        assert found.parallel_tool_calls is (False if wanted == "required" else None)


@pytest.mark.parametrize(
    ("name", "prompt", "until"),
    [
        ("qwen3", "<think>\n", "</think>"), ("qwen3", "", ""), ("qwen3", "<think>\n\n</think>", ""),
        ("deepseek_r1", "", "</think>"), ("mistral", "[THINK]", "[/THINK]"), ("granite", "", ""),
    ],
)  # fmt: skip
def test_reasoning_that_is_open_says_what_ends_it(name: str, prompt: str, until: str) -> None:
    assert reasoning.find(name)(prompt).open_until == until
