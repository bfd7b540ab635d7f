"""What a server said, and one place where two answers differ."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a server said: the status, and the body as JSON (its text where it is none)."""

    status: int
    body: Any


class Difference(NamedTuple):
    """One place where two answers differ.

    Attributes:
        path: e.g. `sampling_params.top_k`, `features.mm_hashes.image[0]`.
        ours, theirs: the values, tensors in short.
    """

    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.path}: ours {_short(self.ours)}, theirs {_short(self.theirs)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:180]} … {text[-110:]}"
