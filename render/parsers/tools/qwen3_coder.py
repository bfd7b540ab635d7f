"""Qwen3-Coder: `<function=name><parameter=key>value</parameter></function>` in `<tool_call>`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from render.parsers.lane import Lane
from render.parsers.scan import Markers
from render.parsers.tools.base import ToolDelta, ToolParser, separated, tag

_OPENINGS = Markers(["<tool_call>", "<function="])
_INSIDE = Markers(["<parameter=", "</function>", "</tool_call>"])
_VALUE_ENDS = Markers(["</parameter>", "<parameter=", "</function>"])
_AFTER = Markers(["</tool_call>", "<tool_call>", "<function="])


class Qwen3Coder(ToolParser):
    """A parameter's value is sent when it is complete, typed by the tool's schema."""

    tokens = ("<tool_call>", "</tool_call>")

    fields = (*ToolParser.fields, "_function", "_parameter", "_value", "_parameters")
    modes = frozenset({"text", "name", "inside", "key", "parameter_value", "after"})

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._function = ""
        self._parameter = ""
        self._value = ""
        self._parameters = 0

    def push(self, text: str) -> ToolDelta:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        while text:
            text = getattr(self, "_" + self._mode)(text, content, calls)
        return ToolDelta("".join(content), calls)

    def lane(self) -> Lane | None:
        """Text runs to the first sign of a call, a value is kept to the first sign of its end."""
        if self._held:
            return None
        if self._mode == "text" and not self._fresh:
            return Lane("content", _OPENINGS.initials)
        if self._mode == "parameter_value":
            return Lane("nothing", _VALUE_ENDS.initials, self._keep)
        return None

    def _keep(self, text: str) -> bool:
        self._value += text
        return True

    def finish(self) -> ToolDelta:
        """What was held back and is final now; an open call is closed."""
        held, self._held = self._held, ""
        if self._mode == "text":
            return ToolDelta(held, [])
        calls: list[dict[str, Any]] = []
        if self._mode == "parameter_value":
            self._value += held
            self._end_value(calls)
        if self._mode in ("inside", "key"):
            calls.append(self.more("}" if self._parameters else "{}"))
        return ToolDelta("", calls)

    def _text(self, text: str, content: list[str], _calls: list[dict[str, Any]]) -> str:
        found = _OPENINGS.split(text)
        content.append(self.outside(found.before, call_follows=bool(found.marker)))
        if not found.marker:
            self._held = found.after
            return ""
        if found.marker == "<function=":
            self._mode = "name"
        else:
            self._fresh = True  # the line break after it is no text either
        return found.after

    def _name(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        name, closed, after = text.partition(">")
        if not closed:
            self._held = text
            return ""
        self._function, self._parameters = name.strip(), 0
        calls.append(self.begin(self._function))
        self._mode = "inside"
        return after

    def _inside(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        found = _INSIDE.split(text)
        if not found.marker:
            self._held = found.after
            return ""
        if found.marker == "<parameter=":
            self._mode = "key"
        else:
            calls.append(self.more("}" if self._parameters else "{}"))
            self._mode = "after" if found.marker == "</function>" else "text"
        return found.after

    def _key(self, text: str, _content: list[str], _calls: list[dict[str, Any]]) -> str:
        key, closed, after = text.partition(">")
        if not closed:
            self._held = text
            return ""
        self._parameter, self._value, self._mode = key.strip(), "", "parameter_value"
        return after

    def _parameter_value(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        found = _VALUE_ENDS.split(text)
        self._value += found.before
        if not found.marker:
            self._held = found.after
            return ""
        self._end_value(calls)
        if found.marker == "</parameter>":
            return found.after
        return found.marker + found.after

    def _value_text(self, text: str) -> str:
        """A value without the line breaks that the format puts around it."""
        return text.removeprefix("\n").removesuffix("\n")

    def _after(self, text: str, content: list[str], _calls: list[dict[str, Any]]) -> str:
        found = _AFTER.split(text)
        content.append(self.outside(found.before, call_follows=bool(found.marker)))
        if not found.marker:
            self._held = found.after
            return ""
        self._mode = "name" if found.marker == "<function=" else "text"
        return found.after

    def _end_value(self, calls: list[dict[str, Any]]) -> None:
        typed = _typed(self._value_text(self._value), self._schema())
        lead = ", " if self._parameters else "{"
        calls.append(self.more(f"{lead}{json.dumps(self._parameter)}: {typed}"))
        self._parameters += 1
        self._value = ""
        self._mode = "inside"

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """One call per pair of tags, its parameters in tags of their own."""
        tags = [
            tag(
                f"<tool_call>\n<function={name}>\n",
                schema,
                "</function>\n</tool_call>",
                "qwen_xml",
            )
            for name, schema in functions
        ]
        return separated(tags, "\n", single=single)

    def _schema(self) -> dict[str, Any]:
        for tool in self.tools:
            function = tool.get("function")
            if isinstance(function, dict) and function.get("name") == self._function:
                properties = (function.get("parameters") or {}).get("properties") or {}
                found = properties.get(self._parameter)
                return found if isinstance(found, dict) else {}
        return {}


def _typed(text: str, schema: dict[str, Any]) -> str:
    """The value as JSON: as its schema says, as text where it does not fit or says nothing."""
    kinds = schema.get("type", "string")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind == "string":
            continue
        bare = text.strip()
        if kind == "boolean" and bare.lower() in ("true", "false"):
            return bare.lower()
        if bare.lower() in ("null", "none"):
            return "null"
        try:
            value = json.loads(bare)
        except ValueError:
            continue
        if _fits(value, str(kind)):
            return bare
    return json.dumps(text, ensure_ascii=False)


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(
        value,
        {"integer": (int,), "number": (int, float), "object": (dict,), "array": (list,)}.get(
            kind, ()
        ),
    )
