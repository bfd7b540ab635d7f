"""A circuit breaker: a replica that keeps failing is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.errors import DeadlineExceeded, InternalError, TriptychError, Unavailable

_BLAMED = (Unavailable, InternalError, DeadlineExceeded)


class Breaker:
    """Opens after `threshold` failures in a row; then lets one call through to see.

    Args:
        threshold: failures in a row.
        first_s, longest_s: how long it stays open; doubled each time the trial fails.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        threshold: int = 3,
        first_s: float = 0.5,
        longest_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._failures = 0
        self._open_s = first_s
        self._closed_at = 0.0

    @property
    def open(self) -> bool:
        """Whether no call may be made."""
        return self._clock() < self._closed_at

    @property
    def trial(self) -> bool:
        """Whether only one call may be in flight: it has been open and nothing succeeded since."""
        return not self.open and self._failures >= self._threshold

    def succeeded(self) -> None:
        """A call was answered."""
        self._failures = 0
        self._open_s = self._first_s

    def failed(self, error: TriptychError) -> float | None:
        """A call failed; returns for how many seconds it is open now, or None if it is not.

        An error that the request is to blame for, or a full queue, says nothing against a replica.
        """
        if not isinstance(error, _BLAMED):
            return None
        self._failures += 1
        if self._failures < self._threshold or self.open:
            return None
        opened, self._open_s = self._open_s, min(2 * self._open_s, self._longest_s)
        self._closed_at = self._clock() + opened
        return opened
