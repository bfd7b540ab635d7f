"""Answers of a given form through every topology: JSON of a schema, and calls that are forced."""

from __future__ import annotations

import json
from typing import Any, cast

import jsonschema
import openai
import pytest

from tests.cluster.asking import chat, unseen
from tests.cluster.fleet import TOPOLOGIES, Fleet

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "blue", "green"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait", "parameters": SCHEMA}},
]
NAMED = {"type": "function", "function": {"name": "paint"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "drawing", "schema": SCHEMA}}
(PICTURE,) = unseen("describe", 1, seed=31)


def ask(fleet: Fleet, topology: str, **fields: Any) -> Any:
    url = f"{fleet.url(topology)}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        body = chat(PICTURE, **fields)
        if not fields.get("stream"):
            return client.chat.completions.create(**cast("Any", body))
        return list(client.chat.completions.create(**cast("Any", body)))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_an_answer_is_json_of_the_schema(fleet: Fleet, topology: str) -> None:
    answer = ask(fleet, topology, response_format=FORMAT)
    text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)
    assert answer.choices[0].finish_reason == "stop"
    chunks = ask(fleet, topology, response_format=FORMAT, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_forced_call_is_made(fleet: Fleet, topology: str) -> None:
    answer = ask(fleet, topology, tools=TOOLS, tool_choice=NAMED)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "paint"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    assert answer.choices[0].finish_reason == "tool_calls"
    chunks = ask(fleet, topology, tools=TOOLS, tool_choice=NAMED, stream=True)
    deltas = [one for c in chunks if c.choices for one in c.choices[0].delta.tool_calls or ()]
    assert "".join(one.function.arguments or "" for one in deltas) == call.function.arguments
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
