"""What a piece of JSON does to the place where it stands, worked out once per piece."""

from __future__ import annotations

import re
from typing import NamedTuple

from render.parsers.state import PlainState

OUTSIDE, STRING, ESCAPED = 0, 1, 2
"""Places in a JSON text: between strings, in one, and in one after a backslash."""

_SIGNS = {
    OUTSIDE: re.compile(r'["\[\]{}]'),
    STRING: re.compile(r'["\\]'),
    ESCAPED: re.compile(r"(?s)."),
}
_MOST_PIECES = 2**18


class Move(NamedTuple):
    """From one place to another.

    Attributes:
        place: where the piece ends.
        depth: brackets that it opens, less those that it closes.
        lowest: the least of that number on the way, at most 0.
    """

    place: int
    depth: int
    lowest: int


class _Moves(dict[str, Move | None]):
    """Piece -> its move from one place, None where it stays there; filled as they are asked for."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def __missing__(self, text: str) -> Move | None:
        if len(self) >= _MOST_PIECES:
            self.clear()
        move = _move(text, self._place)
        self[text] = found = None if move == (self._place, 0, 0) else move
        return found


MOVES = (_Moves(OUTSIDE), _Moves(STRING), _Moves(ESCAPED))
"""By place. Asked about single tokens, so they hold no more than the vocabularies do."""


class Nested(PlainState):
    """What is inside brackets, counted as its text comes."""

    _depth: int
    _place: int

    def take(self, text: str) -> bool:
        """Take the whole text if it leaves a bracket open; only while one is."""
        move = MOVES[self._place][text]
        if move is None:
            return True
        if self._depth + move.lowest <= 0:
            return False
        self._place = move.place
        self._depth += move.depth
        return True


def _move(text: str, place: int) -> Move:
    depth = lowest = at = 0
    while (sign := _SIGNS[place].search(text, at)) is not None:
        at = sign.end()
        if place == ESCAPED:
            place = STRING
        elif place == STRING:
            place = ESCAPED if sign[0] == "\\" else OUTSIDE
        elif sign[0] == '"':
            place = STRING
        else:
            depth += 1 if sign[0] in "[{" else -1
            lowest = min(lowest, depth)
    return Move(place, depth, lowest)
