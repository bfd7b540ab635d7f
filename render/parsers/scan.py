"""Finding markers in text that comes in pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """Text before the first marker, the marker ("" where there is none), and the text after it."""

    before: str
    marker: str
    after: str


class Markers:
    """A set of markers to split at.

    Attributes:
        initials: their first characters; text without these has neither a marker nor a part of one.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._prefixes = tuple({m[:n] for m in markers for n in range(1, len(m))})
        self._longest = max(map(len, markers), default=0)
        self.initials = frozenset(marker[0] for marker in markers)

    def split(self, text: str) -> Found:
        """Split at the first marker, the longer of two at one place.

        Without one, `after` is the end of the text that may yet become a marker.
        """
        found = [(at, -len(m), m) for m in self._markers if (at := text.find(m)) >= 0]
        if found:
            at, _, marker = min(found)
            return Found(text[:at], marker, text[at + len(marker) :])
        held = self._held(text)
        return Found(text[: len(text) - held], "", text[len(text) - held :])

    def _held(self, text: str) -> int:
        if not text.endswith(self._prefixes):
            return 0
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if text[len(text) - size :] in self._prefixes:
                return size
        return 0


@functools.cache
def markers(*texts: str) -> Markers:
    """The set of these, made once: a parser's markers are constants of its class."""
    return Markers(texts)
