"""Tools have one form, however a client writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import SchemaViolation
from render.tool_definitions import shown

PARAMETERS = {"type": "object", "properties": {"b": {}, "a": {}}}


def test_what_is_not_said_is_null_and_the_order_is_the_contracts() -> None:
    written = {"function": {"parameters": PARAMETERS, "name": "f", "extra": 1}, "type": "function"}
    assert json.dumps(shown([written])) == json.dumps([
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": PARAMETERS},
        }
    ])  # fmt: skip


def test_optional_keys_are_shown_where_they_are_set() -> None:
    function = {"name": "f", "description": "d", "strict": True, "parameters": None}
    (tool,) = shown([{"type": "function", "function": function, "defer_loading": False}])
    assert tool["function"]["strict"] is True
    assert tool["function"]["defer_loading"] is False
    assert tool["defer_loading"] is False


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({}, "tools[0].function"),
        ({"function": {"parameters": {}}}, "tools[0].function"),
        ({"type": "retrieval", "function": {"name": "f"}}, "tools[0].type"),
        ({"function": {"name": "f", "description": 1}}, "tools[0].function.description"),
        ({"function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
        ({"function": {"name": "f", "strict": "yes"}}, "tools[0].function.strict"),
    ],
)
def test_a_malformed_tool_names_its_field(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        shown([tool])
    assert caught.value.param == param
