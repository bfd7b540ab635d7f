"""The contract of a routing policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What a policy sees of a replica."""

    @property
    def id(self) -> str:
        """Unique, new after a restart."""
        ...

    @property
    def load(self) -> float:
        """Calls it works on or has queued."""
        ...


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    """Chooses a replica; called from one event loop, must not block."""

    def pick(self, candidates: Sequence[C], key: str | None) -> C:
        """One of `candidates` (at least one); `key` names the content for affinity."""
        ...
