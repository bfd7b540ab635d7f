"""Which pools serve a request: split, encode + prefill_decode, or all in one.

Replicas of one request share a fingerprint (their cohort). `all` replicas never serve together
with split pools. Where several ways are open, split is preferred.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from coordinator.member import Member
from coordinator.replicas import ReplicaPool
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Unavailable
from protocol.replica import Role

Kind = Literal["split", "fused", "all"]

ROLES: dict[Kind, tuple[Role, ...]] = {
    "split": ("encode", "prefill", "decode"),
    "fused": ("encode", "prefill_decode"),
    "all": ("all",),
}
"""Worker roles of each topology, best first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is served.

    Attributes:
        kind: the topology.
        cohort: digest of the fingerprint that its replicas share, or FOREIGN.
    """

    kind: Kind
    cohort: str

    def suits(self, member: Member) -> bool:
        """Whether the member may serve the request."""
        return member.joins(self.cohort)


async def choose_plan(pool: ReplicaPool, deadline: Deadline, *, media: bool) -> Plan:
    """A plan all of whose stages are ready, waiting for one if need be.

    Args:
        pool: the replicas.
        deadline: until when to wait (`stage_wait_s` inside the request's).
        media: whether there is something to encode.

    Raises:
        Unavailable: names the roles that are missing.
    """
    while True:
        plan = _ready_plan(pool, media=media)
        if plan is not None:
            return plan
        try:
            await pool.changed(deadline)
        except DeadlineExceeded:
            names = ", ".join(missing(pool, media=media)) or "matching"
            raise Unavailable(f"no {names} replica is ready", None, "edge", (), 2.0) from None


def missing(pool: ReplicaPool, *, media: bool = True) -> list[str]:
    """Roles without a ready replica, of the topology that lacks the fewest; [] when one is whole.

    A topology of which replicas are known counts before one of which none are.
    """
    if _ready_plan(pool, media=media) is not None:
        return []
    known = {member.role for member in pool.members()}
    ready = {member.role for member in pool.members() if member.ready}

    def rank(kind: Kind) -> tuple[bool, int]:
        roles = _needed(kind, media)
        return (not known & set(roles), len(set(roles) - ready))

    kind = min(ROLES, key=rank)
    absent: list[str] = [role for role in _needed(kind, media) if role not in ready]
    return absent or list(_needed(kind, media))


def _needed(kind: Kind, media: bool) -> tuple[Role, ...]:
    return tuple(role for role in ROLES[kind] if media or role != "encode")


def _ready_plan(pool: ReplicaPool, *, media: bool) -> Plan | None:
    workers = [m for m in pool.members() if m.ready and m.role != "render"]
    cohorts = {m.cohort for m in workers if m.role != "encode"}
    for kind in ROLES:
        roles = _needed(kind, media)
        whole: list[tuple[str, int]] = []
        for cohort in cohorts:
            joined = [m.role for m in workers if m.joins(cohort)]
            width = min(joined.count(role) for role in roles)
            if width:
                whole.append((cohort, width))
        if whole:
            names, widths = zip(*whole, strict=True)
            return Plan(kind, random.choices(names, widths)[0])  # noqa: S311
    return None
