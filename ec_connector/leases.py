"""Read leases: who reads what, until when. Pure, the clock is passed in.

A lease pins its target from grant to the first of release, expiry and the end of its session.
Its id is random: knowing a descriptor does not let anybody release another's lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Target(Protocol):
    """What a lease pins: a store entry or an offer."""

    pins: int


@dataclass(slots=True)
class Lease:
    """One consumer's right to read one target until a point in time."""

    id: bytes
    session: int
    target: Target
    until: float


class LeaseTable:
    """All read leases that this process has granted."""

    def __init__(self) -> None:
        self._leases: dict[bytes, Lease] = {}
        self._by_session: dict[int, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, session: int, target: Target, until: float) -> Lease:
        """A new lease on `target`, which stays pinned until the lease ends."""
        lease = Lease(secrets.token_bytes(16), session, target, until)
        self._leases[lease.id] = lease
        self._by_session.setdefault(session, set()).add(lease.id)
        target.pins += 1
        return lease

    def release(self, session: int, lease_id: bytes) -> Target | None:
        """End a lease of this session; None where there is no such lease (any more)."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.session != session:
            return None
        return self._end(lease)

    def renew(self, session: int, lease_ids: Iterable[bytes], until: float) -> list[bytes]:
        """Extend leases of this session; returns those that still exist."""
        renewed = []
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is not None and lease.session == session:
                lease.until = max(lease.until, until)
                renewed.append(lease_id)
        return renewed

    def end_session(self, session: int) -> list[Target]:
        """End all leases of a session whose connection is gone."""
        return [self._end(self._leases[i]) for i in list(self._by_session.get(session, ()))]

    def expire(self, now: float) -> list[Lease]:
        """End the leases whose time is over; returns them."""
        over = [lease for lease in self._leases.values() if lease.until <= now]
        for lease in over:
            self._end(lease)
        return over

    def next_expiry(self) -> float | None:
        """When the first lease ends by itself."""
        return min((lease.until for lease in self._leases.values()), default=None)

    def _end(self, lease: Lease) -> Target:
        del self._leases[lease.id]
        mine = self._by_session[lease.session]
        mine.discard(lease.id)
        if not mine:
            del self._by_session[lease.session]
        lease.target.pins -= 1
        return lease.target
