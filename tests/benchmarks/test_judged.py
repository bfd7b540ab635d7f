"""What the judging benchmarks make of what they saw."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import affinity, chaos, leaks, overlap, overload
from benchmarks.report import Check


def failed(checks: list[Check]) -> list[str]:
    return [check.figure for check in checks if not check.kept]


def test_a_siege_is_survived_only_whole() -> None:
    struck = Counter({"encode": 2, "prefill": 2, "decode": 2, "render": 2})
    outcome = chaos.Outcome(struck, [], [], [0.1] * 40, true=1.0)
    assert failed(chaos.checks_of(outcome, 8)) == []
    outcome.lost.append("503: gone")
    outcome.wrong.append(("a red circle", "a blue circle"))
    outcome.struck["render"] = 0
    outcome.orphans = 1
    assert failed(chaos.checks_of(outcome, 8)) == [
        "replicas struck",
        "of the stage struck least",
        "requests lost",
        "answers wrong",
        "orphans",
    ]


def test_what_is_left_is_named() -> None:
    clean = leaks.Left("prefill-0", {}, (10, 10), (100, 104))
    dirty = leaks.Left("decode-0", {"triptych_ec_leases": 1.0}, (10, 11), (100, 106))
    assert failed(leaks.checks_of([clean], 30, [], 100)) == []
    assert failed(leaks.checks_of([clean, dirty], 30, [], 100)) == [
        "decode-0: things held {'triptych_ec_leases': 1.0}",
        "decode-0: sockets more",
        "decode-0: memory after over before",
    ]


def figures(stages: str, served: int, refusal_s: float) -> overload.Figures:
    answers = overload.Answers(10.0, served, 5000 - served, 0, 0, 0, 0)
    return overload.Figures(stages, 80.0, answers, [refusal_s] * 200, [100] * 20)


def test_goodput_and_refusals_are_judged_where_the_capacity_is_known() -> None:
    assert failed(overload.checks_of(figures("sleeping", 760, 0.01))) == []
    slow = figures("sleeping", 700, 0.06)
    assert slow.goodput == pytest.approx(0.875)
    assert failed(overload.checks_of(slow)) == [
        "sleeping: goodput over capacity",
        "sleeping: p99 of refusals, ms",
    ]
    assert failed(overload.checks_of(figures("demo model", 700, 0.06))) == []


def test_the_ideal_hides_all_but_one_picture() -> None:
    times = overlap.Times("computing", off=2.0, on=1.4, encode=1.0, prefill=1.0)
    assert times.ratio == pytest.approx(0.7)
    assert times.ideal == pytest.approx((2.0 - 0.75) / 2.0)


def test_affinity_saves_encodes_and_the_bound_keeps_the_tail_short() -> None:
    played = {name: affinity.play(name, policy, 4000) for name, policy in affinity.POLICIES.items()}
    ours, unbounded = played[affinity.DEFAULT], played["hash, no bound"]
    assert unbounded.encodes < ours.encodes < played["least loaded"].encodes
    assert ours.p99 <= unbounded.p99
