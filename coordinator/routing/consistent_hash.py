"""The replica that content belongs to, unless it has too much to do already.

Rendezvous hashing orders the replicas for each key; the first whose load stays within `slack`
times the mean takes it. So one replica's coming or going moves only the keys that were its own,
and no replica gets more than its share however popular one key is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from coordinator.routing.base import C
from coordinator.routing.least_loaded import LeastLoaded


class BoundedConsistentHash:
    """Affinity by key under a load bound.

    Args:
        slack: at least 1.0; how far above the mean a replica's load may go for affinity's sake.
    """

    def __init__(self, slack: float) -> None:
        self._slack = max(1.0, slack)
        self._without_key = LeastLoaded()

    def pick(self, candidates: Sequence[C], key: str | None) -> C:
        """As `Policy.pick`; without a key the least loaded."""
        if key is None:
            return self._without_key.pick(candidates, None)
        total = sum(candidate.load for candidate in candidates) + 1
        bound = math.ceil(self._slack * total / len(candidates))
        ordered = sorted(candidates, key=lambda c: _weight(c.id, key), reverse=True)
        for candidate in ordered:
            if candidate.load + 1 <= bound:
                return candidate
        return min(ordered, key=lambda c: c.load)


def home(candidates: Sequence[C], key: str) -> C:
    """The replica that content belongs to, whatever its load."""
    return max(candidates, key=lambda candidate: _weight(candidate.id, key))


def _weight(replica: str, key: str) -> bytes:
    return hashlib.blake2b(f"{replica}\0{key}".encode(), digest_size=8).digest()
