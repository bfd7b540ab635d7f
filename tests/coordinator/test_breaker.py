"""When a replica is left alone."""

from __future__ import annotations

from coordinator.breaker import Breaker
from protocol.errors import InvalidRequest, Overloaded, TransferError, Unavailable

GONE = Unavailable("gone")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failures_in_a_row_open_it_and_a_success_does_not_count_them() -> None:
    breaker = Breaker(threshold=3)
    assert [breaker.failed(GONE) for _ in range(2)] == [None, None]
    breaker.succeeded()
    assert [breaker.failed(GONE) for _ in range(3)] == [None, None, 0.5]
    assert breaker.open


def test_a_trial_that_fails_opens_it_for_longer() -> None:
    clock = Clock()
    breaker = Breaker(threshold=1, first_s=1.0, longest_s=3.0, clock=clock)
    lengths = []
    for _ in range(4):
        length = breaker.failed(GONE)
        assert length is not None
        lengths.append(length)
        assert breaker.open
        assert not breaker.trial
        clock.now += length
        assert not breaker.open
        assert breaker.trial
    assert lengths == [1.0, 2.0, 3.0, 3.0]
    breaker.succeeded()
    assert not breaker.trial
    assert breaker.failed(GONE) == 1.0


def test_what_the_request_or_the_load_is_to_blame_for_does_not_count() -> None:
    breaker = Breaker(threshold=1)
    for error in (InvalidRequest("no"), Overloaded("busy"), TransferError("no", "missing")):
        assert breaker.failed(error) is None
    assert not breaker.open


def test_calls_that_fail_while_it_is_open_do_not_prolong_it() -> None:
    clock = Clock()
    breaker = Breaker(threshold=1, first_s=1.0, clock=clock)
    assert breaker.failed(GONE) == 1.0
    assert breaker.failed(GONE) is None
    clock.now += 1.0
    assert not breaker.open
