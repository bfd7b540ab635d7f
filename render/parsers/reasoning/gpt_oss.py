"""gpt-oss: messages on channels; `analysis` is reasoning, `final` is the answer.

A commentary message to a function is a tool call: it is passed on with its header, for the tool
parser of the same name.
"""

from __future__ import annotations

import re

from render.parsers.lane import Lane
from render.parsers.reasoning.base import ReasoningParser, Split
from render.parsers.scan import Markers

_HEADER = Markers(["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>"])
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_BODY = Markers(["<|end|>", "<|return|>", "<|call|>", "<|start|>"])


class GptOss(ReasoningParser):
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`."""

    tokens = (
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>",
        "<|constrain|>",
    )  # fmt: skip

    fields = ("_in_header", "_header", "_kind", "_held")

    def __init__(self, prompt_end: str) -> None:
        self._in_header = True
        self._header = ""
        self._kind = "final"
        self._held = ""

    def push(self, text: str) -> Split:
        """Take more text in order."""
        text = self._held + text
        self._held = ""
        reasoning: list[str] = []
        content: list[str] = []
        while text:
            found = (_HEADER if self._in_header else _BODY).split(text)
            if self._in_header:
                self._header += found.before
                self._in_header = found.marker != "<|message|>"
                if not self._in_header:
                    content.append(self._begin())
                elif found.marker:
                    channel = found.marker == "<|channel|>"
                    self._header = self._header + found.marker if channel else ""
            else:
                (reasoning if self._kind == "analysis" else content).append(found.before)
                if found.marker:
                    content.append("<|call|>" if self._kind == "call" else "")
                    self._in_header, self._header = True, ""
            text = found.after
            if not found.marker:
                self._held, text = text, ""
        return Split("".join(reasoning), "".join(content))

    def lane(self) -> Lane | None:
        """A message's body runs to the first sign of its end."""
        if self._held or self._in_header:
            return None
        return Lane("reasoning" if self._kind == "analysis" else "content", _BODY.initials)

    def finish(self) -> Split:
        """What was held back and is final now."""
        held, self._held = self._held, ""
        if self._in_header:
            # A model that never opened a channel wrote plain text.
            plain = "" if "<|channel|>" in self._header else self._header + held
            return Split("", plain)
        return Split(held, "") if self._kind == "analysis" else Split("", held)

    def _begin(self) -> str:
        """The kind of the message whose header is complete; its header if it is a tool call."""
        header, self._header = self._header, ""
        function = _RECIPIENT.search(header)
        if function is not None:
            self._kind = "call"
            return f"<|channel|>commentary to=functions.{function[1]}<|message|>"
        channel = header.rpartition("<|channel|>")[2].split()
        self._kind = "analysis" if channel[:1] == ["analysis"] else "final"
        return ""
