"""What an answer must look like: `response_format`, `structured_outputs` and forced tool calls.

All three leave as `structured_outputs` of the sampling parameters, which workers apply
(wire-protocol §2.7, §8.1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from protocol.errors import InvalidRequest, SchemaViolation
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.structured import structured_outputs
from render.parsers.tools.base import ToolParser


def form_of(
    request: ChatCompletionRequest | CompletionRequest, parser: type[ToolParser] | None
) -> dict[str, Any] | None:
    """`structured_outputs` as they go on the wire, None where the answer is free.

    A forced call rules over a format. Of `structured_outputs` every key is passed on.

    Raises:
        InvalidRequest: names the field.
    """
    if isinstance(request, ChatCompletionRequest) and is_forced(request.tool_choice):
        return _calls(request, parser)
    given, wanted = request.structured_outputs, _response_format(request.response_format)
    if given is None:
        return wanted
    if wanted is not None:
        raise InvalidRequest(
            "response_format and structured_outputs cannot be given together", "response_format"
        )
    structured_outputs(given, "structured_outputs")
    return dict(given)


def is_forced(choice: str | dict[str, Any] | None) -> bool:
    """Whether a tool choice leaves no answer but calls."""
    return choice not in (None, "auto", "none")


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": json.dumps(form)}
    if kind != "json_schema":
        raise SchemaViolation(
            "response_format.type must be text, json_object, json_schema or structural_tag",
            "response_format.type",
        )
    named = form.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequest(
            "response_format.json_schema needs a schema", "response_format.json_schema.schema"
        )
    return {"json": schema}


def _calls(request: ChatCompletionRequest, parser: type[ToolParser] | None) -> dict[str, Any]:
    """Calls in the model's own words, so that its tool parser finds them."""
    functions = chosen(request.tools or [], request.tool_choice)
    single = not isinstance(request.tool_choice, str) or request.parallel_tool_calls is False
    form = None if parser is None else parser.forced(functions, single=single)
    if form is None:
        named = "no tool parser" if parser is None else f"the tool parser {parser.__name__}"
        raise InvalidRequest(
            f"tool_choice must be 'auto' or 'none': {named} is in use here, for which calls cannot "
            "be forced",
            "tool_choice",
        )
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}


def chosen(
    tools: Sequence[dict[str, Any]], choice: str | dict[str, Any] | None
) -> list[tuple[str, Any]]:
    """Name and parameters' schema of each function that may be called.

    Raises:
        InvalidRequest: the choice names none of them, or is malformed.
    """
    functions = [(tool["function"]["name"], _schema(tool["function"])) for tool in tools]
    if not isinstance(choice, dict):
        if choice not in (None, "auto", "none", "required"):
            raise InvalidRequest(
                "tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice"
            )
        return functions
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise InvalidRequest("tool_choice needs type 'function' and a name", "tool_choice")
    found = [(own, schema) for own, schema in functions if own == name]
    if not found:
        raise InvalidRequest(
            f"tool_choice names {name!r}, which is none of the tools", "tool_choice.function.name"
        )
    return found[:1]


def _schema(function: dict[str, Any]) -> Any:
    parameters = function.get("parameters")
    return parameters if isinstance(parameters, dict) and parameters else {"type": "object"}
