"""Where one JSON object or array ends, as its text comes."""

from __future__ import annotations

import re

from render.parsers.state import PlainState

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["\[\]{}]')


class JsonValue(PlainState):
    """Counts brackets outside strings; linear.

    Attributes:
        done: the value is complete.
    """

    fields = ("done", "_depth", "_string", "_escaped")

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._string = False
        self._escaped = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        at = 0
        while at < len(text) and not self.done:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            stop = (_IN_STRING if self._string else _OUTSIDE).search(text, at)
            if stop is None:
                return len(text)
            at = stop.end()
            char = stop[0]
            if self._string:
                self._escaped = char == "\\"
                self._string = char != '"'
            elif char == '"':
                self._string = True
            else:
                self._depth += 1 if char in "[{" else -1
                self.done = self._depth <= 0
        return at
