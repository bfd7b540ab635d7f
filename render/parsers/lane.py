"""Where text goes that changes nothing: the short way through a parser for most tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple


class Lane(NamedTuple):
    """What a parser does with text in the state that it is in.

    Text with none of the characters `stops` in it goes to `sink` as it is and leaves the parser in
    that state. Where `take` is there it is asked as well: true says that the parser has taken the
    text, false that it has not and wants to see it the long way.
    """

    sink: Literal["reasoning", "content", "arguments", "nothing"]
    stops: frozenset[str] = frozenset()
    take: Callable[[str], bool] | None = None
