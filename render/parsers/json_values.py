"""Where one JSON object or array ends, as its text comes."""

from __future__ import annotations

import re

from render.parsers.json_moves import ESCAPED, OUTSIDE, STRING, Nested

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["\[\]{}]')


class JsonValue(Nested):
    """Counts brackets outside strings; linear.

    Attributes:
        done: the value is complete.
    """

    fields = ("done", "_depth", "_place")

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._place = OUTSIDE

    @property
    def open(self) -> bool:
        """Whether something of the value is there, and more is to come."""
        return self._depth > 0

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        at = 0
        while at < len(text) and not self.done:
            if self._place == ESCAPED:
                self._place = STRING
                at += 1
                continue
            stop = (_IN_STRING if self._place else _OUTSIDE).search(text, at)
            if stop is None:
                return len(text)
            at = stop.end()
            char = stop[0]
            if self._place:
                self._place = OUTSIDE if char == '"' else ESCAPED
            elif char == '"':
                self._place = STRING
            else:
                self._depth += 1 if char in "[{" else -1
                self.done = self._depth <= 0
        return at
