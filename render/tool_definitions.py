"""Tools as chat templates are shown them: the contract's keys in the contract's order."""

from __future__ import annotations

from typing import Any

from protocol.errors import SchemaViolation

_KINDS: dict[str, tuple[type, str]] = {
    "name": (str, "a string"),
    "description": (str, "a string"),
    "parameters": (dict, "an object"),
    "strict": (bool, "true or false"),
    "defer_loading": (bool, "true or false"),
}
_ALWAYS = ("name", "description", "parameters")
"""Written as null where a tool does not have them: templates print what they are given, and equal
tools have to make equal tokens."""


def shown(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The definitions, whatever else and in whatever order a client writes.

    Raises:
        SchemaViolation: they do not have the contract's form.
    """
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: dict[str, Any], at: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SchemaViolation("a tool needs a function with a name", f"{at}.function")
    if tool.get("type", "function") != "function":
        raise SchemaViolation("a tool's type must be 'function'", f"{at}.type")
    if function.get("defer_loading") is None and tool.get("defer_loading") is not None:
        function = {**function, "defer_loading": tool["defer_loading"]}
    out: dict[str, Any] = {}
    for name, (kind, words) in _KINDS.items():
        value = function.get(name)
        if value is not None and not isinstance(value, kind):
            raise SchemaViolation(f"{name} must be {words}", f"{at}.function.{name}")
        if value is not None or name in _ALWAYS:
            out[name] = value
    extra = {} if tool.get("defer_loading") is None else {"defer_loading": tool["defer_loading"]}
    return {"type": "function", "function": out, **extra}
