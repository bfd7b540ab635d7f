"""One JSON object `{"name": ..., "arguments": {...}}` as its text comes."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from render.parsers.json_moves import ESCAPED, OUTSIDE, STRING, Nested

_SPACE = " \t\r\n"
_ARGUMENTS = frozenset({"arguments", "parameters"})
_IN_STRING = re.compile(r'["\\]')
_IN_CONTAINER = re.compile(r'["\[\]{}]')
_MAX_NAME = 512


class JsonDelta(NamedTuple):
    """What a piece of text adds.

    Attributes:
        name: the function, when it becomes known; else "".
        arguments: text of the arguments' JSON.
        rest: what follows the object, once it is done or found to be none.
    """

    name: str
    arguments: str
    rest: str


class JsonCall(Nested):
    """Streams the arguments of one call; linear in its characters.

    Attributes:
        named: the function is known.
        done: the object is complete.
        broken: the text is not such an object; nothing more is taken.
    """

    fields = (
        "named", "done", "broken", "_stage", "_key", "_raw", "_begun", "_quoted", "_depth",
        "_place", "_escaped", "_name", "_held", "_any",
    )  # fmt: skip

    def __init__(self) -> None:
        self.named = False
        self.done = False
        self.broken = False
        self._stage = "start"
        self._key = ""
        self._raw = ""
        self._begun = False
        self._quoted = False
        self._depth = 0
        self._place = OUTSIDE
        self._escaped = False
        self._name = ""
        self._held = ""
        self._any = False

    @property
    def in_arguments(self) -> bool:
        """Whether what `take` gets are arguments of a known function."""
        inside = self._stage == "value" and self._begun and self._depth > 0
        return inside and self.named and not self._quoted and self._key in _ARGUMENTS

    def push(self, text: str) -> JsonDelta:
        """Take more of the object."""
        was_named = self.named
        out: list[str] = []
        at = 0
        while at < len(text) and not self.done and not self.broken:
            if self._stage == "value" and self._begun and self._place != ESCAPED:
                at = self._run(text, at, out)
                if at == len(text):
                    break
            self._step(text[at], out)
            at += 1
        if self.broken:
            at -= 1
        return self._delta(was_named, out, text[at:])

    def _delta(self, was_named: bool, out: list[str], rest: str) -> JsonDelta:
        arguments = "".join(out)
        if not self.named:
            self._held += arguments
            return JsonDelta("", "", rest)
        if not was_named:
            arguments, self._held = self._held + arguments, ""
        if self.done and not self._any:
            arguments += "{}"
        return JsonDelta("" if was_named else self._name, arguments, rest)

    def _run(self, text: str, at: int, out: list[str]) -> int:
        """Take the characters up to the next one that matters."""
        if self._place:
            stop = _IN_STRING.search(text, at)
        elif self._depth:
            stop = _IN_CONTAINER.search(text, at)
        else:
            return at
        end = stop.start() if stop else len(text)
        if end > at:
            self._take(text[at:end], out)
        return end

    def _step(self, char: str, out: list[str]) -> None:
        if self._stage == "value":
            self._in_value(char, out)
        elif self._stage == "key":
            self._in_key(char)
        elif char not in _SPACE:
            self._between(char)

    def _between(self, char: str) -> None:
        """Punctuation around keys and values."""
        match self._stage, char:
            case "start", "{":
                self._stage = "object"
            case "object", "}":
                self.done = True
            case "object", '"':
                self._stage, self._raw = "key", char
            case "object", ",":
                pass
            case "colon", ":":
                self._stage, self._raw = "value", ""
                self._begun = self._quoted = False
            case _:
                self.broken = True

    def _in_key(self, char: str) -> None:
        self._raw += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._key = _text(self._raw)
            self._stage = "colon"

    def _in_value(self, char: str, out: list[str]) -> None:
        if not self._begun:
            if char in _SPACE:
                return
            self._begun, self._depth, self._place = True, 0, OUTSIDE
            self._quoted = char == '"' and self._key in _ARGUMENTS
            self.broken = char in ",]}:"
        elif not self._place and self._depth == 0 and (char in ",}" or char in _SPACE):
            self._close(out)  # the end of a bare word
            self.done = char == "}"
            return
        self._take(char, out)
        if self._place == ESCAPED:
            self._place = STRING
        elif self._place == STRING:
            self._place = ESCAPED if char == "\\" else int(char != '"')
        elif char == '"':
            self._place = STRING
            return
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
        if not self._place and self._depth == 0 and char in '"]}':
            self._close(out)

    def _take(self, piece: str, out: list[str]) -> None:
        if self._key in _ARGUMENTS and not self._quoted:
            self._any = True
            out.append(piece)
        elif self._quoted or (self._key == "name" and len(self._raw) < _MAX_NAME):
            self._raw += piece

    def _close(self, out: list[str]) -> None:
        if self._key == "name" and not self.named:
            self._name = _text(self._raw)
            self.named = bool(self._name)
            self.broken = not self.named
        elif self._quoted:  # arguments as a string that holds JSON
            self._any = True
            out.append(_text(self._raw) or "{}")
        self._stage = "object"


def _text(raw: str) -> str:
    """The string of a JSON literal, "" where it is none."""
    try:
        value = json.loads(raw)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
