"""What a chat's messages look like, for the OpenAPI description.

The structs leave messages open, since what a part may hold depends on the model; this says what is
the same for all of them.
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_URL = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "object", "required": ["url"], "properties": {"url": _TEXT, "detail": {}}},
    ]
}


def _part(kind: str, **fields: Any) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **fields}
    return {"type": "object", "required": ["type", *fields], "properties": properties}


PART: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        *(_part(kind, text=_TEXT) for kind in ("text", "input_text", "output_text")),
        *(_part(kind, **{kind: _URL}) for kind in ("image_url", "video_url", "audio_url")),
        _part(
            "input_audio",
            input_audio={
                "type": "object",
                "required": ["data", "format"],
                "properties": {"data": _TEXT, "format": _TEXT},
            },
        ),
    ]
}
"""A content part."""

MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        "content": {
            "anyOf": [_TEXT, {"type": "array", "items": {"$ref": "#/components/schemas/Part"}}]
        },
        "name": {"type": ["string", "null"]},
        "tool_call_id": {"type": ["string", "null"]},
    },
}
"""A message."""

TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": _TEXT, "description": {}, "parameters": {}},
        }
    },
}
"""A function that the model may call."""


def refine(components: dict[str, Any]) -> None:
    """Put them into the schemas of requests that hold chats, and say what may not be empty."""
    components |= {"Part": PART, "Message": MESSAGE, "Tool": TOOL}
    message, tool = ({"$ref": f"#/components/schemas/{name}"} for name in ("Message", "Tool"))
    for name in ("ChatCompletionRequest", "TokenizeRequest"):
        properties = components[name]["properties"]
        properties["messages"] = {"type": "array", "minItems": 1, "items": message}
        properties["tools"] = {
            "anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": tool}]
        }
    for name, key in (("MessagesRequest", "messages"), ("GenerateRequest", "token_ids")):
        components[name]["properties"][key]["minItems"] = 1
    components["CompletionRequest"]["required"] = ["prompt"]
    either = [{"required": ["prompt"]}, {"required": ["messages"]}]
    components["TokenizeRequest"]["oneOf"] = either
    components["TokenizeRequest"]["properties"]["prompt"] = _TEXT
