"""Calls as JSON objects after a marker: Hermes, Granite, and Mistral's older form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from render.parsers.json_calls import JsonCall
from render.parsers.lane import Lane
from render.parsers.scan import markers
from render.parsers.tools.base import ToolDelta, ToolParser, separated, tag

_BETWEEN = " \t\r\n,[];"


class MarkedJson(ToolParser):
    """Text, then an opening marker, then objects, then a closing marker if the format has one.

    With `end` "" everything after the opening marker is calls; text that is no object ends them.
    """

    starts: ClassVar[tuple[str, ...]] = ()
    end: ClassVar[str] = ""

    fields: ClassVar[tuple[str, ...]] = (*ToolParser.fields, "_call", "_seen")
    modes = frozenset({"text", "between", "object"})

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._call = JsonCall()
        self._seen = ""

    def push(self, text: str) -> ToolDelta:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        while text:
            before = (self._mode, len(text))
            text = getattr(self, "_" + self._mode)(text, content, calls)
            if (self._mode, len(text)) == before:
                break
        return ToolDelta("".join(content), calls)

    def lane(self) -> Lane | None:
        """Text runs to the first sign of a call, arguments to the brace that closes them."""
        if self._held:
            return None
        if self._mode == "text" and not self._fresh:
            return Lane("content", markers(*self.starts).initials)
        if self._mode == "object" and self._call.in_arguments:
            return Lane("arguments", take=self._call.take)
        return None

    def finish(self) -> ToolDelta:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        if self._mode == "object" and not self._call.named:
            held = self._seen + held  # never became a call: show what the model wrote
        return ToolDelta(held if self._mode != "between" else "", [])

    def _text(self, text: str, content: list[str], _calls: list[dict[str, Any]]) -> str:
        found = markers(*self.starts).split(text)
        content.append(self.outside(found.before, call_follows=bool(found.marker)))
        if not found.marker:
            self._held = found.after
            return ""
        self._mode = "between"
        return found.after

    def _between(self, text: str, _content: list[str], _calls: list[dict[str, Any]]) -> str:
        rest = text.lstrip(_BETWEEN)
        if not rest:
            return ""
        if rest[0] == "{":
            self._mode, self._call, self._seen = "object", JsonCall(), ""
            return rest
        if self.end and rest.startswith(self.end):
            self._mode = "text"
            return rest.removeprefix(self.end)
        if self.end and self.end.startswith(rest):
            self._held = rest
            return ""
        self._mode = "text"
        return rest

    def _object(self, text: str, content: list[str], calls: list[dict[str, Any]]) -> str:
        found = self._call.push(text)
        if not self._call.named:
            self._seen += text[: len(text) - len(found.rest)]
        if found.name:
            self._seen = ""
            calls.append(self.begin(found.name))
        if found.arguments:
            calls.append(self.more(found.arguments))
        if self._call.done or self._call.broken:
            if not self._call.named:
                content.append(self._seen)
                self._seen = ""
            self._mode = "between" if self._call.done else "text"
        return found.rest


class Hermes(MarkedJson):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also Qwen2.5 and Qwen3."""

    starts = ("<tool_call>",)
    end = "</tool_call>"
    tokens = ("<tool_call>", "</tool_call>")

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """One call per pair of tags."""
        tags = [
            tag(f"<tool_call>\n{named(name)}", schema, "}\n</tool_call>")
            for name, schema in functions
        ]
        return separated(tags, "\n", single=single)


class Granite(MarkedJson):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`."""

    starts = ("<|tool_call|>", "<tool_call>")
    end = "</tool_call>"
    tokens = ("<|tool_call|>", "<tool_call>", "</tool_call>")

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """A list of calls."""
        return in_list("<|tool_call|>", functions, single=single)


def named(name: str) -> str:
    """The beginning of a call's object, up to its arguments."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


def in_list(mark: str, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any]:
    """A marker and a list of calls after it."""
    calls = separated([tag(named(n), schema, "}") for n, schema in functions], ", ", single=single)
    opening = {"type": "const_string", "value": mark + "["}
    closing = {"type": "const_string", "value": "]"}
    return {"type": "sequence", "elements": [opening, calls, closing]}
