"""Llama 3: an answer that is nothing but `{"name": ..., "parameters": {...}}` objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from render.parsers.lane import Lane
from render.parsers.tools.base import ToolDelta, separated, tag
from render.parsers.tools.marked_json import MarkedJson, named

_TAG = "<|python_tag|>"


class Llama3Json(MarkedJson):
    """Objects from the first character on, or after `<|python_tag|>`."""

    starts = (_TAG,)
    tokens = starts

    fields = (*MarkedJson.fields, "_begun")

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._begun = False

    def push(self, text: str) -> ToolDelta:
        """Take more text in order; white space waits for what it stands before."""
        if not self._begun:
            begin = (self._held + text).lstrip()
            if not begin:
                self._held += text
                return ToolDelta("", [])
            self._begun = True
            if begin[0] == "{":
                self._mode = "between"
        return super().push(text)

    def lane(self) -> Lane | None:
        """As `MarkedJson`, once the first character has said what the answer is."""
        return super().lane() if self._begun else None

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """Bare objects."""
        tags = [
            tag(named(name).replace('"arguments": ', '"parameters": '), schema, "}")
            for name, schema in functions
        ]
        return separated(tags, "; ", single=single)
