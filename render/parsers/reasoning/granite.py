"""Granite's reasoning: two sentences of plain English open and close it."""

from __future__ import annotations

from render.parsers.lane import Lane
from render.parsers.reasoning.base import ReasoningParser, Split
from render.parsers.scan import Markers

_THOUGHT = ("Here is my thought process:", "Here's my thought process:")
_RESPONSE = Markers(["Here is my response:", "Here's my response:"])


class Granite(ReasoningParser):
    """`Here is my thought process:` reasoning `Here is my response:` answer."""

    fields = ("_phase", "_held")

    def __init__(self, prompt_end: str) -> None:
        self._phase = "start"
        self._held = ""

    def push(self, text: str) -> Split:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        if self._phase == "start":
            begun = text.lstrip()
            opening = next((mark for mark in _THOUGHT if begun.startswith(mark)), None)
            if opening is not None:
                self._phase, text = "reasoning", begun.removeprefix(opening)
            elif any(mark.startswith(begun) for mark in _THOUGHT):
                self._held = text
                return Split("", "")
            else:
                self._phase = "answer"
        if self._phase != "reasoning":
            return Split("", text)
        found = _RESPONSE.split(text)
        if not found.marker:
            self._held = found.after
            return Split(found.before, "")
        self._phase = "answer"
        return Split(found.before, found.after)

    def lane(self) -> Lane | None:
        """Reasoning runs to the first sign of the response, the answer to the last token."""
        if self._held or self._phase == "start":
            return None
        if self._phase == "reasoning":
            return Lane("reasoning", _RESPONSE.initials)
        return Lane("content")

    def finish(self) -> Split:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        return Split(held, "") if self._phase == "reasoning" else Split("", held)
