"""What the soak of render asks, and what it says of what it saw."""

from __future__ import annotations

import collections

from benchmarks.soak_render import Hostility, Seen, checks_of, growth


def test_every_kind_of_request_can_be_made() -> None:
    hostility = Hostility(3)
    for kind, make in hostility.kinds.items():
        for _ in range(6):
            path, body = make()
            assert path.startswith("/"), kind
            assert isinstance(body, bytes), kind


def test_growth_is_from_after_the_warm_up_to_the_end() -> None:
    samples = [(float(at), 500 if at < 20 else 900 if at < 80 else 990) for at in range(101)]
    assert growth(samples) == (900, 990)


def test_what_must_not_be_fails_the_run() -> None:
    flat = [(float(at), 100) for at in range(11)]
    rising = [(float(at), 100 + at) for at in range(11)]
    good = Seen(collections.Counter({200: 5, 400: 3}))
    assert [check.kept for check in checks_of(good, flat)] == [True] * 4
    assert [check.kept for check in checks_of(good, rising)] == [True, True, True, False]
    bad = Seen(collections.Counter({200: 5, 500: 1}), faults=["x: 500 y", "y: ReadTimeout"])
    assert [check.kept for check in checks_of(bad, flat)] == [False, False, True, True]
