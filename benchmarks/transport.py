"""Moving bytes between two processes: our transports beside what they could be replaced with.

    python -m benchmarks.transport [--json FILE] [--check] [--only NAME ...] [--quick]

Every system serves in one process and measures in another, pinned to a core each. Times are of a
round: 1 or 8 items in flight, from asking to holding them all; a pass takes the median round. The
passes are interleaved, so that a busy moment of the machine does not fall on one system alone: the
table shows medians over the passes, and what is compared is compared within each pass first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import mooncake_environment, report
from benchmarks.transport_systems.base import median

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
SIZES = (64 * 1024, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
IN_FLIGHT = (1, 8)
_LARGEST_ROUND = 512 * MIB
_ANSWER_S = 180


@dataclass(frozen=True)
class System:
    """One row: a module of `transport_systems`, with what its processes get."""

    name: str
    module: str
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable


SYSTEMS = (
    System("memcpy", "memcpy"),
    System("sockets", "sockets"),
    System("zeromq", "zeromq"),
    System("safetensors /dev/shm", "safetensors_file"),
    System("raw nixl", "nixl_raw"),
    System("raw nixl, tcp only", "nixl_raw", {"UCX_TLS": "tcp"}),
    System("raw ucxx", "ucxx_raw"),
    System("raw ucxx, tcp only", "ucxx_raw", {"UCX_TLS": "tcp"}),
    System("mooncake tcp", "mooncake"),
    System("ours: shm", "ours", {"BENCH_TRANSPORT": "shm"}),
    System("ours: shm, mapping alone", "shm_mapping"),
    System("ours: nixl", "ours", {"BENCH_TRANSPORT": "nixl"}),
    System("ours: ucx", "ours", {"BENCH_TRANSPORT": "ucx"}),
    System("ours: tcp", "ours", {"BENCH_TRANSPORT": "tcp"}),
)

Case = tuple[int, int]
Figures = dict[str, dict[Case, list[float]]]
"""System -> (size, in flight) -> seconds of the median round, per pass."""


class Failed(Exception):
    """A system did not answer; the message says what it wrote last."""


class Process:
    """One end of a system."""

    def __init__(self, system: System, side: str) -> None:
        self._process = subprocess.Popen(
            [system.python, "-m", f"benchmarks.transport_systems.{system.module}", side],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "UCX_WARN_UNUSED_ENV_VARS": "n",
                **system.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, settings: dict[str, Any]) -> Any:
        """Tell it what to do, once, and wait for what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it wrote last says why
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()
        limit = threading.Timer(_ANSWER_S, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:
                if line.startswith("@"):
                    return json.loads(line[1:])
        finally:
            limit.cancel()
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines() or ["it said nothing"]
        raise Failed(lines[-1])

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def measure(
    system: System, cases: list[Case], seconds: float, cores: tuple[int, int] | None
) -> dict[Case, float]:
    """The median round of each case."""
    settings = {"cases": cases, "seconds": seconds}
    here, there = cores or (None, None)
    server, client = Process(system, "serve"), Process(system, "measure")  # import side by side
    try:
        address = server.answer({**settings, "core": here, "address": None})["address"]
        rounds = client.answer({**settings, "core": there, "address": address})["rounds"]
    finally:
        client.end()
        server.end()
    return {case: median(seconds) for case, seconds in zip(cases, rounds, strict=True)}


def compare(
    systems: list[System], cases: list[Case], seconds: float, passes: int
) -> tuple[Figures, dict[str, str]]:
    """The passes of each system and case, and why systems are missing."""
    available = sorted(os.sched_getaffinity(0))
    cores = (available[0], available[1]) if len(available) > 1 else None
    found: Figures = {}
    missing: dict[str, str] = {}
    for number in range(passes):
        for system in systems:
            if system.name in missing:
                continue
            begun = time.monotonic()
            try:
                figures = measure(_prepared(system), cases, seconds, cores)
            except (Failed, mooncake_environment.CannotBuild, OSError) as error:
                missing[system.name] = str(error)
                found.pop(system.name, None)
                continue
            row = found.setdefault(system.name, {case: [] for case in cases})
            for case, value in figures.items():
                row[case].append(value)
            took = time.monotonic() - begun
            print(f"pass {number + 1} of {passes}: {system.name}, {took:.0f} s", file=sys.stderr)
    return found, missing


def _prepared(system: System) -> System:
    """The system with the environment that it runs in."""
    if system.module != "mooncake":
        return system
    environment = mooncake_environment.get()
    return replace(system, python=environment.python, environment=environment.variables)


def checks(figures: Figures) -> list[report.Check]:
    """The bounds that our transports keep against what they stand beside."""
    found: list[report.Check] = []

    def at_least(name: str, base: str, cases: list[Case], bound: float) -> None:
        for case in cases:
            if name in figures and base in figures and case in figures[name]:
                pairs = zip(figures[base][case], figures[name][case], strict=True)
                share = median([theirs / ours for theirs, ours in pairs])
                found.append(report.Check(f"{name} / {base}, {label(case)}", share, bound))

    cases = list(next(iter(figures.values()), {}))
    large = [(size, many) for size, many in cases if size >= 16 * MIB and many == 1]
    at_least("ours: tcp", "sockets", large, 0.95)
    at_least("ours: tcp", "raw nixl, tcp only", large, 2.5)
    at_least("ours: nixl", "raw nixl", large, 0.9)
    at_least("ours: ucx", "raw ucxx", large, 0.9)
    eight = [(size, many) for size, many in cases if many == 8]
    at_least("ours: tcp", "sockets", eight, 0.9)
    for name, base in (("tcp", "sockets"), ("nixl", "raw nixl"), ("ucx", "raw ucxx")):
        ours, raw = figures.get(f"ours: {name}", {}), figures.get(base, {})
        if (MIB, 1) in ours and (MIB, 1) in raw:
            pairs = zip(ours[MIB, 1], raw[MIB, 1], strict=True)
            added = median([mine - theirs for mine, theirs in pairs]) * 1e6
            found.append(
                report.Check(f"ours: {name} - {base}, 1 MiB, us", added, 250, at_least=False)
            )
    for name, bound in (("ours: shm", 400), ("ours: shm, mapping alone", 50)):
        for case, values in figures.get(name, {}).items():
            if case[1] == 1:
                what = f"{name}, {label(case)}, us"
                found.append(report.Check(what, median(values) * 1e6, bound, at_least=False))
    return found


def label(case: Case) -> str:
    """A case in words."""
    size, many = case
    name = f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"
    return name if many == 1 else f"{many} x {name}"


def show(figures: Figures, missing: dict[str, str]) -> None:
    """Medians over the passes and, below, how many times as fast as the plain socket each is."""
    cases = list(next(iter(figures.values()), {}))
    head = ["microseconds per round", *(label(case) for case in cases)]
    times = {name: {c: median(row[c]) for c in cases} for name, row in figures.items()}
    rows = [[name, *(f"{row[c] * 1e6:,.0f}" for c in cases)] for name, row in times.items()]
    print(report.table(head, rows))
    if "sockets" in figures:
        base = times["sockets"]
        head = ["times as fast as sockets", *head[1:]]
        rows = [[name, *(f"{base[c] / row[c]:.2f}" for c in cases)] for name, row in times.items()]
        print()
        print(report.table(head, rows))
    for name, why in missing.items():
        print(f"{name}: not measured: {why}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    parser.add_argument("--only", nargs="+", default=[], help="names of systems, or parts of them")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.15, help="per case and pass")
    parser.add_argument("--quick", action="store_true", help="one short pass up to 16 MiB")
    arguments = parser.parse_args()
    limit = 16 * MIB if arguments.quick else SIZES[-1]
    cases = [
        (size, many)
        for many in IN_FLIGHT
        for size in SIZES
        if size <= limit and size * many <= _LARGEST_ROUND
    ]
    systems = [s for s in SYSTEMS if not arguments.only or any(o in s.name for o in arguments.only)]
    passes, seconds = (1, 0.1) if arguments.quick else (arguments.passes, arguments.seconds)
    figures, missing = compare(systems, cases, seconds, passes)
    show(figures, missing)
    bounds = checks(figures)
    if arguments.json is not None:
        plain = {
            name: {label(case): value for case, value in row.items()}
            for name, row in figures.items()
        }
        settings = {"passes": passes, "seconds": seconds, "missing": missing}
        report.write(arguments.json, "transport", settings, plain, bounds)
    return report.exit_status(bounds, enforced=arguments.check)


if __name__ == "__main__":
    sys.exit(main())
