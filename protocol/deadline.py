"""One absolute deadline per request, made at admission and passed to every call."""

from __future__ import annotations

import time

from protocol.errors import DeadlineExceeded


class Deadline:
    """A point on the monotonic clock; a hop takes what remains."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self, stage: str | None = None) -> float:
        """Seconds left.

        Raises:
            DeadlineExceeded: none are.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the request's time is over", None, stage)
        return left

    def within(self, seconds: float) -> Deadline:
        """The earlier of this and `seconds` from now: a stage's limit inside the total."""
        return Deadline(min(self.at, time.monotonic() + seconds))
