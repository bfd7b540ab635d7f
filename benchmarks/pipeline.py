"""What splitting a model over processes costs and gives: `python -m benchmarks.pipeline`.

Requests per second, time to first token and time per output token of `all`, E+PD and E+P+D with
1, 8 and 32 clients, the CPU time that a request costs its coordinator, and the peak memory of
every process. The topologies have equally many threads and are asked in turn, round after round,
so that whatever else the machine does meets all of them; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import report
from benchmarks.load import Load, Prepared, run, streaming
from benchmarks.topologies import FEWEST_THREADS, ROLES, Fleet, Topology, running
from benchmarks.usage import MemoryPeaks, cpu_seconds
from tests.cluster.asking import chat, mixed

CLIENTS = (1, 8, 32)
CHECKED_CLIENTS = 8
REQUESTS_PER_CLIENT = 12
"""Enough for the start, when queues fill stage by stage, and the end, when they run empty, to
weigh little."""
LEAST_RATIO = 0.7


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        threads: of each topology's workers together.
        rounds: how often every topology is measured with every number of clients.
        requests: clients -> requests of one measurement.
    """

    threads: int
    rounds: int
    requests: dict[int, int]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One topology, one number of clients, one round."""

    topology: str
    clients: int
    requests_per_s: float
    first_token_ms: float
    first_token_p90_ms: float
    per_token_ms: float
    coordinator_cpu_ms: float
    right: float
    errors: list[str]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of a topology with a number of clients.

    Attributes:
        first_token_ms, first_token_p90_ms: time to first token.
        per_token_ms: time per output token.
        coordinator_cpu_ms: CPU time of the coordinator per request.
        against_all: requests per second over those of `all` in the same round.
        right: share of answers that are word for word what they should be.
    """

    topology: str
    clients: int
    requests_per_s: float
    against_all: float
    first_token_ms: float
    first_token_p90_ms: float
    per_token_ms: float
    coordinator_cpu_ms: float
    right: float
    errors: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is not kept")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--threads", type=int, default=FEWEST_THREADS, help="of each topology")
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, or 1 with --quick")
    given = parser.parse_args(arguments)
    # A benchmark that is told to end ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if given.threads < FEWEST_THREADS:
        parser.error(f"--threads must be at least {FEWEST_THREADS}")
    settings = Settings(
        threads=given.threads,
        rounds=given.rounds or (1 if given.quick else 3),
        requests={
            clients: max(24, REQUESTS_PER_CLIENT * clients) // (2 if given.quick else 1)
            for clients in CLIENTS
        },
    )
    with tempfile.TemporaryDirectory(prefix="pipeline-") as directory:
        _say("starting render and, for each topology, workers and a coordinator")
        with running(Path(directory), settings.threads) as fleet:
            measured, peaks = _measure(fleet, settings)
    cells = summarise(measured)
    checks = checks_of(cells)
    print(_table(cells))
    print()
    print(report.table(["peak memory", "MiB"], [[k, f"{v / 2**20:.0f}"] for k, v in peaks.items()]))
    print()
    if given.json is not None:
        figures = {"cells": cells, "rounds": measured, "peak_pss_bytes": peaks}
        report.write(given.json, "pipeline", settings, figures, checks)
    return report.exit_status(checks, enforced=given.check)


def _measure(fleet: Fleet, settings: Settings) -> tuple[list[Measured], dict[str, int]]:
    families = {name: process.family() for name, process in fleet.processes().items()}
    measured = []
    for topology in fleet.topologies.values():
        asyncio.run(run(topology.url, requests_of(8, seed=1), 4))  # first requests warm caches up
    with MemoryPeaks(families) as memory:
        for number in range(settings.rounds):
            for clients, count in settings.requests.items():
                for place in range(len(fleet.topologies)):
                    # Every topology is first, second and last equally often.
                    name = list(ROLES)[(place + number) % len(ROLES)]
                    _say(f"round {number + 1} of {settings.rounds}: {name}, {clients} clients")
                    seed = 100 + (number * len(CLIENTS) + CLIENTS.index(clients)) * 3 + place
                    measured.append(
                        measure(fleet.topologies[name], clients, requests_of(count, seed))
                    )
    return measured, memory.peaks


def requests_of(count: int, seed: int) -> list[Prepared]:
    """Mixed requests about drawings that no other measurement uses."""
    return [streaming(chat(example), example.answer) for example in mixed(count, seed)]


def measure(topology: Topology, clients: int, requests: list[Prepared]) -> Measured:
    """One measurement."""
    family = topology.coordinator.family()
    before = cpu_seconds(family)
    load = asyncio.run(run(topology.url, requests, clients))
    return figures_of(topology.name, clients, load, cpu_seconds(family) - before)


def figures_of(topology: str, clients: int, load: Load, coordinator_cpu_s: float) -> Measured:
    """The figures of one measurement."""
    good = [timing for timing in load.timings if not timing.error]
    first = [timing.first_token * 1000 for timing in good]
    return Measured(
        topology=topology,
        clients=clients,
        requests_per_s=load.requests_per_s,
        first_token_ms=report.median(first),
        first_token_p90_ms=report.quantile(first, 0.9),
        per_token_ms=report.median(t.per_token * 1000 for t in good if t.per_token is not None),
        coordinator_cpu_ms=coordinator_cpu_s * 1000 / len(load.timings),
        right=sum(timing.right for timing in good) / len(load.timings),
        errors=load.errors,
    )


def summarise(measured: list[Measured]) -> list[Cell]:
    """Medians over the rounds, by clients and topology."""
    cells = []
    for clients in sorted({m.clients for m in measured}):
        of_clients = [m for m in measured if m.clients == clients]
        baseline = [m.requests_per_s for m in of_clients if m.topology == "all"]
        for topology in ROLES:
            rounds = [m for m in of_clients if m.topology == topology]
            against = [m.requests_per_s / whole for m, whole in zip(rounds, baseline, strict=True)]
            medians: dict[str, Any] = {
                name: report.median(getattr(m, name) for m in rounds)
                for name in (
                    "requests_per_s", "first_token_ms", "first_token_p90_ms", "per_token_ms",
                    "coordinator_cpu_ms", "right",
                )
            }  # fmt: skip
            cells.append(
                Cell(
                    topology=topology,
                    clients=clients,
                    against_all=report.median(against),
                    errors=sum(len(m.errors) for m in rounds),
                    **medians,
                )
            )
    return cells


def checks_of(cells: list[Cell]) -> list[report.Check]:
    """What must hold."""
    split = next(c for c in cells if (c.topology, c.clients) == ("E+P+D", CHECKED_CLIENTS))
    return [
        report.Check(
            f"requests/s of E+P+D over all at {CHECKED_CLIENTS} clients",
            split.against_all,
            LEAST_RATIO,
        ),
        report.Check("failed requests", sum(cell.errors for cell in cells), 0, at_least=False),
    ]


def _table(cells: list[Cell]) -> str:
    head = [
        "topology", "clients", "requests/s", "of all", "first token ms", "p90", "per token ms",
        "coordinator CPU ms", "right", "errors",
    ]  # fmt: skip
    return report.table(
        head,
        [
            [
                cell.topology,
                str(cell.clients),
                f"{cell.requests_per_s:.2f}",
                f"{cell.against_all:.2f}",
                f"{cell.first_token_ms:.0f}",
                f"{cell.first_token_p90_ms:.0f}",
                f"{cell.per_token_ms:.1f}",
                f"{cell.coordinator_cpu_ms:.1f}",
                f"{cell.right:.0%}",
                str(cell.errors),
            ]
            for cell in cells
        ],
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
