"""DeepSeek V3 and V3.1: calls between markers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from render.parsers.json_values import JsonValue
from render.parsers.lane import Lane
from render.parsers.scan import Markers
from render.parsers.tools.base import ToolDelta, ToolParser, separated, tag

_ALL = "<\uff5ctool▁calls▁begin\uff5c>"
_ALL_END = "<\uff5ctool▁calls▁end\uff5c>"
_ONE = "<\uff5ctool▁call▁begin\uff5c>"
_ONE_END = "<\uff5ctool▁call▁end\uff5c>"
_SEP = "<\uff5ctool▁sep\uff5c>"
_OPENINGS = Markers([_ALL, _ALL_END, _ONE])
_CLOSING = Markers([_ONE_END])


class DeepSeekV3(ToolParser):
    """V3: `function SEP name` and a fenced object; V3.1: `name SEP` and a bare one."""

    tokens = (_ALL, _ALL_END, _ONE, _ONE_END, _SEP)

    fields = (*ToolParser.fields, "_head", "_value")
    modes = frozenset({"text", "header", "arguments", "tail"})

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._head = ""
        self._value = JsonValue()

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
        """Text runs to the first sign of a call, arguments to the brace that closes them."""
        if self._held:
            return None
        if self._mode == "text" and not self._fresh:
            return Lane("content", _OPENINGS.initials)
        if self._mode == "arguments" and self._value.open:
            return Lane("arguments", take=self._value.take)
        return None

    def finish(self) -> ToolDelta:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        return ToolDelta(held if self._mode == "text" else "", [])

    def _text(self, text: str, content: list[str], _calls: list[dict[str, Any]]) -> str:
        found = _OPENINGS.split(text)
        content.append(self.outside(found.before, call_follows=bool(found.marker)))
        if found.marker == _ONE:
            self._mode, self._head = "header", ""
        elif not found.marker:
            self._held = found.after
            return ""
        return found.after

    def _header(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        """Everything before the arguments' first brace."""
        before, brace, after = text.partition("{")
        self._head += before
        if not brace:
            return ""
        kind, _, name = self._head.partition(_SEP)
        name = name.split("\n", 1)[0].strip() or kind.strip()
        calls.append(self.begin(name))
        self._mode, self._value = "arguments", JsonValue()
        return brace + after

    def _arguments(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        taken = self._value.push(text)
        if taken:
            calls.append(self.more(text[:taken]))
        if self._value.done:
            self._mode = "tail"
        return text[taken:]

    def _tail(self, text: str, _content: list[str], _calls: list[dict[str, Any]]) -> str:
        found = _CLOSING.split(text)
        if not found.marker:
            self._held = found.after
            return ""
        self._mode = "text"
        return found.after

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """Calls in V3.1's form between the outer markers."""
        tags = [tag(f"{_ONE}{name}{_SEP}", schema, _ONE_END) for name, schema in functions]
        calls = separated(tags, "", single=single)
        return {"type": "tag", "begin": _ALL, "content": calls, "end": _ALL_END}
