"""gpt-oss: messages to `functions.name` on the commentary channel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from render.parsers.lane import Lane
from render.parsers.scan import markers
from render.parsers.tools.base import ToolDelta, ToolParser, separated, tag

_START = "<|channel|>commentary to=functions."
_MESSAGE = "<|message|>"
_ENDS = ("<|call|>", "<|end|>", "<|return|>", "<|start|>")
_WORD = re.compile(r"[^\s<]+")


class GptOss(ToolParser):
    """What the reasoning parser of the same name passes on."""

    tokens = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>")

    modes = frozenset({"text", "header", "arguments"})

    def push(self, text: str) -> ToolDelta:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        while text:
            marks = {"text": (_START,), "header": (_MESSAGE,), "arguments": _ENDS}[self._mode]
            if self._mode == "header":
                at = text.find(_MESSAGE)
                if at < 0:
                    self._held = text
                    break
                name = _WORD.match(text[:at])
                calls.append(self.begin(name[0] if name else ""))
                self._mode, text = "arguments", text[at + len(_MESSAGE) :]
                continue
            found = markers(*marks).split(text)
            if self._mode == "text":
                content.append(found.before)
            elif found.before:
                calls.append(self.more(found.before))
            if not found.marker:
                self._held = found.after
                break
            self._mode = "header" if self._mode == "text" else "text"
            text = found.after
        return ToolDelta("".join(content), calls)

    def lane(self) -> Lane | None:
        """Text runs to the first sign of a call, arguments to the first sign of their end."""
        if self._held or self._mode == "header":
            return None
        if self._mode == "text":
            return Lane("content", markers(_START).initials)
        return Lane("arguments", markers(*_ENDS).initials)

    def finish(self) -> ToolDelta:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        if self._mode == "arguments":
            return ToolDelta("", [self.more(held)] if held else [])
        return ToolDelta(held if self._mode == "text" else "", [])

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """A message per call."""
        tags = [
            tag(f"{_START}{name} <|constrain|>json{_MESSAGE}", schema, "<|call|>")
            for name, schema in functions
        ]
        return separated(tags, "<|start|>assistant", single=single)
