"""What is tried again, how often, and what it costs."""

from __future__ import annotations

import pytest

from coordinator.member import Member
from coordinator.retry import Budget, Retries, can_help_elsewhere
from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotSupported,
    Overloaded,
    TransferError,
    TriptychError,
    Unavailable,
)
from protocol.replica import Replica
from tests.coordinator.test_replicas import SilentClient

MEMBER = Member(Replica("r1", "prefill"), SilentClient())


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (Unavailable("gone"), True),
        (Overloaded("busy"), True),
        (InternalError("broken"), True),
        (DeadlineExceeded("slow"), True),
        (TransferError("no", "missing"), True),
        (TransferError("no", "incompatible"), False),
        (InvalidRequest("no"), False),
        (NotSupported("no"), False),
    ],
)
def test_what_another_replica_may_do_better(error: TriptychError, *, helps: bool) -> None:
    assert can_help_elsewhere(error) is helps


async def run(retries: Retries, *errors: TriptychError, limit: int = 4, reach: bool = True) -> int:
    """Fail with each error in turn, then succeed; returns the number of tries."""
    left = list(errors)
    tries = 0
    for attempt in retries.attempts("prefill", limit, Deadline.after(5)):
        async with attempt:
            tries += 1
            if reach:
                attempt.at(MEMBER)
            if left:
                raise left.pop(0)
            return tries
    raise AssertionError


async def test_tries_end_with_success_or_with_the_last_error() -> None:
    retries = Retries(Budget())
    assert await run(retries, Unavailable("gone"), Unavailable("gone")) == 3
    with pytest.raises(Unavailable, match="third"):
        await run(retries, Unavailable("1"), Unavailable("2"), Unavailable("third"), limit=3)


async def test_a_request_that_breaks_replicas_is_tried_twice_at_most() -> None:
    with pytest.raises(InternalError, match="second"):
        await run(Retries(Budget()), InternalError("first"), InternalError("second"))


async def test_an_empty_budget_ends_the_tries() -> None:
    budget = Budget(ratio=1.0, per_second=0.0, capacity=1.0)
    retries = Retries(budget)
    assert await run(retries, Unavailable("gone")) == 2
    with pytest.raises(Unavailable):
        await run(retries, Unavailable("gone"))
    budget.earn()
    assert await run(retries, Unavailable("gone")) == 2


async def test_nobody_to_call_is_final_and_tells_what_was_wrong_before() -> None:
    with pytest.raises(Unavailable, match="nobody"):
        await run(Retries(Budget()), Unavailable("nobody"), reach=False)

    async def break_one_then_find_nobody() -> None:
        for attempt in Retries(Budget()).attempts("prefill", 4, Deadline.after(5)):
            async with attempt:
                if attempt.failed:
                    raise Unavailable("nobody is ready")
                attempt.at(MEMBER)
                raise InternalError("broken")

    with pytest.raises(InternalError, match="broken"):
        await break_one_then_find_nobody()


async def test_failed_replicas_are_remembered_and_the_stage_is_named() -> None:
    failed: set[str] = set()
    for number, attempt in enumerate(
        Retries(Budget()).attempts("prefill", 2, Deadline.after(5), failed)
    ):
        if number == 0:
            error = Unavailable("gone")
            async with attempt:
                attempt.at(MEMBER)
                raise error
        else:
            assert (attempt.failed, error.stage) == ({"r1"}, "prefill")


async def test_none_begins_after_the_deadline() -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        for attempt in Retries(Budget()).attempts("prefill", 4, Deadline.after(-1)):
            async with attempt:
                tries += 1
                attempt.at(MEMBER)
                raise Unavailable("gone")

    with pytest.raises(Unavailable):
        await fail()
    assert tries == 1
