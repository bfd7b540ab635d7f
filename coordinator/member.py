"""One replica as this coordinator sees it: its connection, its load, whether it can be called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from coordinator.breaker import Breaker
from coordinator.clients.base import StageClient
from protocol.replica import Replica, ReplicaStatus, Role

FOREIGN = "foreign"
"""The cohort of servers that are not ours: they have no fingerprint."""


class Member:
    """One replica as this coordinator sees it."""

    def __init__(self, replica: Replica, client: StageClient) -> None:
        self.replica = replica
        self.client = client
        self.status: ReplicaStatus | None = None
        self.in_flight = 0
        self.intended = 0
        self.listed = True
        self.breaker = Breaker()

    @property
    def id(self) -> str:
        return self.replica.id

    @property
    def role(self) -> Role:
        return self.replica.role

    @property
    def native(self) -> bool:
        return self.replica.engine == "native"

    @property
    def cohort(self) -> str:
        """Digest of the fingerprint, or FOREIGN."""
        fingerprint = self.replica.fingerprint
        return FOREIGN if fingerprint is None or not self.native else fingerprint.digest

    @property
    def ready(self) -> bool:
        """Whether it takes new work."""
        status = self.status
        return (
            self.listed
            and status is not None
            and status.ready
            and not status.draining
            and not self.breaker.open
        )

    @property
    def load(self) -> float:
        """Calls it works on: what it says, or what we have in flight where that is more."""
        status = self.status
        reported = status.running + status.waiting if status is not None else 0
        return max(self.in_flight, reported) + self.intended

    @contextlib.contextmanager
    def intend(self) -> Iterator[None]:
        """Count a call that is about to be made."""
        self.intended += 1
        try:
            yield
        finally:
            self.intended -= 1

    def joins(self, cohort: str | None) -> bool:
        """Whether it may serve a request of the cohort; render and encode mix with foreign ones."""
        if cohort is None or self.role == "render" or self.cohort == cohort:
            return True
        return self.role == "encode" and FOREIGN in (cohort, self.cohort)
