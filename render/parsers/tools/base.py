"""What a tool parser is, and the OpenAI deltas that it gives."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from render.parsers.lane import Lane
from render.parsers.state import PlainState


class ToolDelta(NamedTuple):
    """What a piece of text adds: text for the reader, and entries of `delta.tool_calls`."""

    content: str
    calls: list[dict[str, Any]]


class ToolParser(PlainState):
    """Finds tool calls in a model's answer; one object per choice.

    Args:
        tools: the request's tools, for formats that need their schemas.

    Attributes:
        count: calls begun so far.
    """

    fields: ClassVar[tuple[str, ...]] = ("count", "_mode", "_held", "_blank", "_fresh")

    tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that must be in the text."""

    modes: ClassVar[frozenset[str]] = frozenset()
    """Values of `_mode`, each the name of a method without its underscore."""

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        self.tools = tools
        self.count = 0
        self._mode = "text"
        self._held = ""
        self._blank = ""
        self._fresh = False

    def restore(self, state: dict[str, Any]) -> None:
        """Take the attributes from a state, which a client carried: its mode must be a mode.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this parser.
        """
        super().restore(state)
        if self._mode not in self.modes or self.count < 0:
            raise ValueError("not a state of this parser")

    @classmethod
    def forced(cls, functions: Sequence[tuple[str, Any]], *, single: bool) -> dict[str, Any] | None:
        """The structural tag's format of an answer that is nothing but calls.

        Args:
            functions: name and parameters' JSON schema of each that may be called.
            single: exactly one call.

        Returns:
            None where calls of this kind cannot be forced.
        """
        return None

    @abstractmethod
    def push(self, text: str) -> ToolDelta:
        """Take more text in order."""

    def lane(self) -> Lane | None:
        """The short way for most text in this state, None where there is none."""
        return None

    @abstractmethod
    def finish(self) -> ToolDelta:
        """What was held back and is final now."""

    def begin(self, name: str, arguments: str = "") -> dict[str, Any]:
        """The delta that opens a call."""
        self.count += 1
        self._fresh = True
        return {
            "index": self.count - 1,
            "id": f"chatcmpl-tool-{secrets.token_hex(16)}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def outside(self, text: str, *, call_follows: bool) -> str:
        """Text outside calls: blanks between two calls, or after the last, are left out."""
        if not self._fresh:
            return text
        text = self._blank + text
        self._fresh = not text.strip()
        self._blank = text if self._fresh and not call_follows else ""
        return "" if self._fresh else text

    def more(self, arguments: str) -> dict[str, Any]:
        """The delta that continues the newest call."""
        return {"index": self.count - 1, "function": {"arguments": arguments}}


def tag(begin: str, schema: Any, end: str, style: str = "json") -> dict[str, Any]:
    """A part of a structural tag: arguments between fixed texts."""
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def separated(tags: list[dict[str, Any]], separator: str, *, single: bool) -> dict[str, Any]:
    """A part of a structural tag: one or more of these tags."""
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def merge(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole calls from their deltas, as a message that is not streamed has them."""
    out: list[dict[str, Any]] = []
    texts: list[list[str]] = []
    for call in calls:
        if "id" in call:
            out.append({"id": call["id"], "type": "function", "function": call["function"]})
            texts.append([])
        texts[-1].append(call["function"]["arguments"])
    for call, pieces in zip(out, texts, strict=True):
        call["function"] = {"name": call["function"]["name"], "arguments": "".join(pieces)}
    return out
