"""The replica with the least work; ties are broken at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coordinator.routing.base import C


class LeastLoaded:
    """Ignores the key."""

    def pick(self, candidates: Sequence[C], key: str | None) -> C:
        """As `Policy.pick`."""
        least = min(candidate.load for candidate in candidates)
        return random.choice([c for c in candidates if c.load == least])  # noqa: S311
