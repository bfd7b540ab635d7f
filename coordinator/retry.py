"""When a failed call is tried again elsewhere, and when not.

A request has a bounded number of attempts per stage; all requests together have a budget, so that
a sick cluster is not hammered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from types import TracebackType

from coordinator.member import Member
from coordinator.receipt import Receipt
from protocol.deadline import Deadline
from protocol.errors import (
    ClientError,
    DeadlineExceeded,
    InternalError,
    NotSupported,
    Overloaded,
    TriptychError,
    Unavailable,
)

_PAUSE_S = 0.05


def can_help_elsewhere(error: TriptychError) -> bool:
    """Whether another replica may succeed where this one failed."""
    if isinstance(error, ClientError | NotSupported):
        return False
    return error.retryable or isinstance(error, InternalError)


class Budget:
    """A token bucket of retries: requests earn a fraction each, time earns a trickle.

    Args:
        ratio: retries earned per request.
        per_second: retries earned per second.
        capacity: most that can be saved.
    """

    def __init__(
        self, ratio: float = 0.2, per_second: float = 10.0, capacity: float = 200.0
    ) -> None:
        self._ratio = ratio
        self._per_second = per_second
        self._capacity = capacity
        self._saved = capacity
        self._at = time.monotonic()

    def earn(self) -> None:
        """A request was admitted."""
        self._saved = min(self._capacity, self._saved + self._ratio)

    def spend(self) -> bool:
        """Take one retry; False where none is left."""
        now = time.monotonic()
        self._saved = min(self._capacity, self._saved + self._per_second * (now - self._at))
        self._at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


class Attempt:
    """One try of a stage; leaving it swallows an error that deserves another try."""

    def __init__(
        self,
        retries: Retries,
        stage: str,
        deadline: Deadline,
        failed: set[str],
        faults: list[TriptychError],
        receipt: Receipt | None,
    ) -> None:
        self.failed = failed
        self.last = False
        self._retries = retries
        self._stage = stage
        self._deadline = deadline
        self._member: Member | None = None
        self._reached = False
        self._costs = True
        self._faults = faults
        self._receipt = receipt

    def at(self, member: Member, stage: str | None = None) -> None:
        """Say which replica (and stage) this try is at, so that the next one avoids it."""
        self._member = member
        self._reached = True
        self._stage = stage or self._stage

    def blameless(self) -> None:
        """The failure is not the replica's: the next try may go there again."""
        self._member = None
        self._reached = True

    def costless(self) -> None:
        """Another request's call failed: trying again takes nothing from the budget."""
        self._costs = False
        self._reached = True

    async def __aenter__(self) -> None:
        return

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, TriptychError):
            return False
        if error.stage is None:
            error.stage = self._stage
        if not self._reached:
            # The wait for a replica is over; what was wrong with them says more than that.
            if self._faults and isinstance(error, Unavailable):
                raise self._faults[-1]
            return False
        if self._member is not None:
            self.failed.add(self._member.id)
        # A request that breaks replicas must not be taken through all of them.
        poisonous = isinstance(error, InternalError) and any(
            isinstance(earlier, InternalError) for earlier in self._faults
        )
        self._faults.append(error)
        if self.last or poisonous:
            return False
        if not self._retries.allow(error, self._deadline, costs=self._costs):
            return False
        if self._receipt is not None:
            self._receipt.retries[f"{self._stage}.{error.kind}"] += 1
        if isinstance(error, Overloaded):
            await asyncio.sleep(_PAUSE_S * (1 + random.random()))  # noqa: S311
        return True


class Retries:
    """Hands out attempts under the shared budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def attempts(
        self,
        stage: str,
        limit: int,
        deadline: Deadline,
        failed: set[str] | None = None,
        receipt: Receipt | None = None,
    ) -> Iterator[Attempt]:
        """Attempts, to be left by `return` on success; the last one lets its error through.

        Args:
            stage: named in the errors.
            limit: how many.
            deadline: of the request; none starts after it.
            failed: ids of replicas to avoid, added to with each failure.
            receipt: where retries are counted.
        """
        avoided = set() if failed is None else failed
        faults: list[TriptychError] = []
        for number in range(1, limit + 1):
            attempt = Attempt(self, stage, deadline, avoided, faults, receipt)
            attempt.last = number == limit
            yield attempt

    def allow(self, error: TriptychError, deadline: Deadline, *, costs: bool = True) -> bool:
        """Whether the budget and the clock permit one more try after `error`."""
        try:
            deadline.remaining()
        except DeadlineExceeded:
            return False
        return can_help_elsewhere(error) and (not costs or self.budget.spend())
