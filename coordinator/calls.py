"""One call of a stage at one replica: chosen, timed, and its outcome told to everybody."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection

from coordinator.member import Member
from coordinator.receipt import Receipt
from coordinator.replicas import ReplicaPool
from coordinator.retry import Attempt
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, TriptychError
from protocol.replica import Role


def anybody(_member: Member) -> bool:
    """Suits every member."""
    return True


@contextlib.asynccontextmanager
async def at_replica(
    pool: ReplicaPool,
    role: Role,
    stage: str,
    receipt: Receipt,
    deadline: Deadline,
    *,
    attempt: Attempt | None = None,
    suits: Callable[[Member], bool] = anybody,
    avoid: Collection[str] = (),
    key: str | None = None,
    prefer: str | None = None,
) -> AsyncIterator[Member]:
    """A replica for one call; see `ReplicaPool.lease`.

    The body's outcome goes to the replica's breaker and to the receipt.
    """
    asked_at = time.monotonic()
    async with pool.lease(
        role, deadline, suits=suits, avoid=avoid, key=key, prefer=prefer
    ) as member:
        if attempt is not None:
            attempt.at(member, stage)
        with receipt.call(stage, member.id, asked_at, key or "") as call:
            try:
                yield member
            except TriptychError as error:
                call.error = error.kind
                if not _out_of_time(error, deadline):
                    pool.answered(member, error)
                raise
            pool.answered(member, None)


def _out_of_time(error: TriptychError, deadline: Deadline) -> bool:
    """Whether the request's own time was over, which is no fault of the replica."""
    return isinstance(error, DeadlineExceeded) and deadline.at <= time.monotonic()
