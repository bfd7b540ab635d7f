"""The arithmetic of the pipeline benchmark."""

from __future__ import annotations

import pytest

from benchmarks.load import Load, Timing
from benchmarks.pipeline import Measured, checks_of, figures_of, requests_of, summarise
from benchmarks.topologies import ROLES, share


def measured(topology: str, clients: int, speed: float) -> Measured:
    return Measured(
        topology=topology,
        clients=clients,
        requests_per_s=speed,
        first_token_ms=1,
        first_token_p90_ms=2,
        per_token_ms=3,
        coordinator_cpu_ms=4,
        right=1,
        errors=[],
    )


def test_every_topology_has_equally_many_threads() -> None:
    for threads in (3, 4, 8):
        for roles in ROLES.values():
            split = share(threads, roles)
            assert sum(split.values()) == threads
            assert min(split.values()) >= 1


def test_a_topology_is_compared_with_all_in_the_same_round() -> None:
    rounds = [
        measured("all", 8, 10), measured("E+PD", 8, 9), measured("E+P+D", 8, 8),
        measured("E+P+D", 8, 4), measured("all", 8, 5), measured("E+PD", 8, 1),
    ]  # fmt: skip
    cells = {cell.topology: cell for cell in summarise(rounds)}
    assert cells["E+P+D"].against_all == pytest.approx(0.8)
    assert cells["E+PD"].against_all == pytest.approx((0.9 + 0.2) / 2)
    assert cells["all"].against_all == 1


def test_the_check_names_the_figure() -> None:
    rounds = [measured("all", 8, 10), measured("E+PD", 8, 9), measured("E+P+D", 8, 6)]
    failed = [check for check in checks_of(summarise(rounds)) if not check.kept]
    assert [str(check) for check in failed] == [
        "FAILED: requests/s of E+P+D over all at 8 clients is 0.600, must be >= 0.7"
    ]


def test_failed_requests_are_no_speed_and_fail_the_check() -> None:
    timings = [Timing(0.1, 0.01, 0.5, 10, True), Timing(0.0, None, 0.0, 0, False, "503: gone")]
    figures = figures_of("all", 8, Load(2.0, timings), 0.1)
    assert figures.requests_per_s == 0.5
    assert figures.coordinator_cpu_ms == pytest.approx(50)
    assert figures.right == 0.5
    assert (figures.first_token_ms, figures.per_token_ms) == (100, 10)


def test_measurements_use_different_drawings() -> None:
    assert {r.body for r in requests_of(4, 1)}.isdisjoint({r.body for r in requests_of(4, 2)})
