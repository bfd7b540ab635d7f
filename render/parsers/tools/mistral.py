"""Mistral: `[TOOL_CALLS]` before a JSON array, or before `name[ARGS]{...}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from render.parsers.json_values import JsonValue
from render.parsers.lane import Lane
from render.parsers.tools.marked_json import MarkedJson, in_list

_NAME = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\][\w\-]*)?(?:\[ARGS\])?\s*(?=\{)")
_NAME_BEGUN = re.compile(r"\s*[\w.\-]{0,512}(?:\[[A-Z_]{0,8}\]?[\w\-]*)*\[?\s*$")


class Mistral(MarkedJson):
    """Both forms, one or several calls."""

    starts = ("[TOOL_CALLS]",)
    tokens = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    fields = (*MarkedJson.fields, "_value")
    modes = frozenset({"text", "between", "object", "form", "arguments"})

    def __init__(self, tools: Any) -> None:
        super().__init__(tools)
        self._value = JsonValue()

    def _text(self, text: str, content: list[str], calls: list[dict[str, Any]]) -> str:
        rest = super()._text(text, content, calls)
        if self._mode == "between":
            self._mode = "form"
        return rest

    def _form(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        begun = text.lstrip()
        if not begun:
            self._held = text
            return ""
        if begun[0] in "[{":
            self._mode = "between"
            return begun
        name = _NAME.match(text)
        if name is not None:
            calls.append(self.begin(name[1]))
            self._mode, self._value = "arguments", JsonValue()
            return text[name.end() :]
        if _NAME_BEGUN.match(text):
            self._held = text
            return ""
        self._mode = "text"
        return text

    def _arguments(self, text: str, _content: list[str], calls: list[dict[str, Any]]) -> str:
        taken = self._value.push(text)
        if taken:
            calls.append(self.more(text[:taken]))
        if self._value.done:
            self._mode = "text"
        return text[taken:]

    def lane(self) -> Lane | None:
        """As `MarkedJson`, and through the arguments after a bare name."""
        if self._mode == "arguments" and not self._held and self._value.open:
            return Lane("arguments", take=self._value.take)
        return super().lane()

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """A list of calls, which every generation of the format reads."""
        return in_list("[TOOL_CALLS]", functions, single=single)
