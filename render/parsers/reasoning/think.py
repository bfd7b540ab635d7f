"""Reasoning between two tags: DeepSeek-R1, Qwen3, Mistral."""

from __future__ import annotations

from typing import ClassVar

from render.parsers.lane import Lane
from render.parsers.reasoning.base import ReasoningParser, Split
from render.parsers.scan import markers


class ThinkParser(ReasoningParser):
    """`<think>` reasoning `</think>` answer.

    Where the prompt neither opens nor closes the reasoning, `implicit` says whether a model that
    writes no opening tag is reasoning.
    """

    start: ClassVar[str] = "<think>"
    end: ClassVar[str] = "</think>"
    implicit: ClassVar[bool] = False

    tokens = ("<think>", "</think>")

    fields = ("_phase", "_held")

    def __init__(self, prompt_end: str) -> None:
        opened, closed = prompt_end.rfind(self.start), prompt_end.rfind(self.end)
        self._phase = "undecided"
        if opened > closed:
            self._phase = "reasoning"
        elif closed > opened:
            self._phase = "answer"
        self._held = ""

    def push(self, text: str) -> Split:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        if self._phase == "undecided":
            text = self._decide(text)
        reasoning = ""
        if self._phase == "reasoning":
            found = markers(self.end).split(text)
            reasoning = found.before
            if not found.marker:
                self._held = found.after
                return Split(reasoning, "")
            self._phase, text = "answer", found.after
        return Split(reasoning, text if self._phase == "answer" else "")

    @property
    def closed(self) -> bool:
        """Whether the last tag of the prompt is the closing one."""
        return self._phase == "answer"

    @property
    def open_until(self) -> str:
        """The closing tag, where the prompt or the model's habit opens the reasoning."""
        implied = self._phase == "undecided" and self.implicit
        return self.end if self._phase == "reasoning" or implied else ""

    def lane(self) -> Lane | None:
        """Reasoning runs to the first sign of its end, the answer to the last token."""
        if self._held or self._phase == "undecided":
            return None
        if self._phase == "reasoning":
            return Lane("reasoning", markers(self.end).initials)
        return Lane("content")

    def finish(self) -> Split:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        return Split(held, "") if self._phase == "reasoning" else Split("", held)

    def _decide(self, text: str) -> str:
        begun = text.lstrip()
        if begun.startswith(self.start):
            self._phase = "reasoning"
            return begun.removeprefix(self.start)
        if self.start.startswith(begun):
            self._held = text
            return ""
        self._phase = "reasoning" if self.implicit else "answer"
        return text


class DeepSeekR1(ThinkParser):
    """Reasons from the first token on, with or without an opening tag."""

    implicit = True


class Qwen3(ThinkParser):
    """Reasons only between tags."""


class Mistral(ThinkParser):
    """Magistral's tags."""

    start = "[THINK]"
    end = "[/THINK]"
    tokens = (start, end)
