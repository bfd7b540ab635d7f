"""Render beside vLLM's render server: `python -m benchmarks.render`.

Both serve the same tiny Qwen3-VL checkpoint, with as many media workers as there are cores, and are
asked the same chats by wrk with 8 connections, in turn, round after round: text; pictures that
were never seen, of three sizes; pictures that repeat, answered with the tensors inline; and, where
the server can, without them. A server that answers at once shows what wrk itself can do. The
reference's environment is built once and kept in the cache (see `interop.environment`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from benchmarks import report
from benchmarks.render_requests import SIZES, Pictures, about, texts, write
from benchmarks.usage import MemoryPeaks, cpu_seconds
from interop import environment, servers
from tests.render.family_checkpoints import MAKERS

CONNECTIONS = 8
MAX_MODEL_LEN = 2048
PATH = "/v1/chat/completions/render"
OURS, REFERENCE, NULL = "triptych", "vllm", "null"
REPEATED = 16
"""Different pictures among the repeated ones."""

NEW = tuple(f"new {size}" for size in SIZES)
TEXT, INLINE, BARE = "text", "repeated 512x512", "repeated 512x512, no tensors"
WORKLOADS = (TEXT, *NEW, INLINE, BARE)

_MOST_PER_S = {
    OURS: dict(zip(NEW, (800, 450, 350), strict=True)),
    REFERENCE: dict(zip(NEW, (250, 150, 120), strict=True)),
    NULL: dict.fromkeys(NEW, 50),
}
"""Pictures prepared per second of measurement: more than the server answers, the null one apart."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: seconds of one measurement, and how many of each."""

    seconds: float
    rounds: int
    workers: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One server, one workload, one round; CPU time is of the server's processes."""

    server: str
    workload: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    bad: int


class Wrk(msgspec.Struct, frozen=True):
    """What wrk's script says at its end."""

    seconds: float
    good: int
    bad: int
    exhausted: int
    p50_ms: float
    p99_ms: float


class Target(msgspec.Struct, frozen=True):
    """A server that runs, and its processes."""

    name: str
    url: str
    pid: int

    def family(self) -> list[psutil.Process]:
        """Its process and all below it."""
        top = psutil.Process(self.pid)
        return [top, *top.children(recursive=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is not kept")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, or 1 with --quick")
    parser.add_argument(
        "--seconds", type=float, default=0, help="of a measurement; default: 5 or 2"
    )
    parser.add_argument("--only-ours", action="store_true", help="without the reference")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if shutil.which("wrk") is None:
        parser.error("wrk, the load generator, is not installed (apt-get install wrk)")
    settings = Settings(
        seconds=given.seconds or (2.0 if given.quick else 5.0),
        rounds=given.rounds or (1 if given.quick else 3),
        workers=len(os.sched_getaffinity(0)),
    )
    with tempfile.TemporaryDirectory(prefix="render-") as name, ExitStack() as running:
        folder = Path(name)
        targets = list(_start(folder, settings, running, reference=not given.only_ours))
        _same_tokens(targets)
        measured, peaks = _measure(targets, settings, folder)
    print(_table(measured))
    print()
    print(report.table(["peak memory", "MiB"], [[k, f"{v / 2**20:.0f}"] for k, v in peaks.items()]))
    print()
    checks = [] if given.only_ours else checks_of(measured, peaks)
    if given.json is not None:
        figures = {"rounds": measured, "peak_pss_bytes": peaks}
        report.write(given.json, "render", settings, figures, checks)
    return report.exit_status(checks, enforced=given.check)


def _start(
    folder: Path, settings: Settings, running: ExitStack, *, reference: bool
) -> Iterator[Target]:
    model = MAKERS["qwen3_vl"](folder / "model")
    started = {OURS: servers.ours(model, MAX_MODEL_LEN, {}, folder / "ours.log")}
    if reference:
        options = ["--renderer-num-workers", str(settings.workers)]
        started[REFERENCE] = servers.reference(
            environment.get(), model, MAX_MODEL_LEN, options, folder / "reference.log"
        )
    for name, server in started.items():
        _say(f"starting {name}")
        running.enter_context(server)
    for name, server in started.items():
        server.wait()
        yield Target(name, server.url, server.pid)
    yield running.enter_context(_null())


@contextmanager
def _null() -> Iterator[Target]:
    command = [sys.executable, "-m", "benchmarks.null_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise SystemExit("the null server did not start")
            yield Target(NULL, f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


def _same_tokens(targets: list[Target]) -> None:
    """The servers must do the same work for the comparison to mean anything."""
    bodies = [*texts(3), *(next(about(Pictures(*size), range(1))) for size in SIZES.values())]
    for body in bodies:
        found = {
            target.name: httpx.post(target.url + PATH, json=body, timeout=60)
            .json()
            .get("token_ids")
            for target in targets
            if target.name != NULL
        }
        if None in found.values() or len({str(ids) for ids in found.values()}) != 1:
            raise SystemExit(f"the servers do not answer alike: {str(found)[:400]}")


def _measure(
    targets: list[Target], settings: Settings, folder: Path
) -> tuple[list[Measured], dict[str, int]]:
    families = {target.name: target.family() for target in targets}
    measured = []
    with MemoryPeaks(families) as memory:
        for number in range(settings.rounds):
            for workload in WORKLOADS:
                for place in range(len(targets)):
                    target = targets[(place + number) % len(targets)]
                    if (workload == BARE and target.name != OURS) or (
                        target.name == NULL and workload in (BARE, INLINE)
                    ):
                        continue
                    _say(f"round {number + 1} of {settings.rounds}: {target.name}, {workload}")
                    seed = number * len(targets) + place
                    measured.append(_one(target, workload, settings, folder, seed))
    return measured, {name: peak for name, peak in memory.peaks.items() if name != NULL}


def _one(target: Target, workload: str, settings: Settings, folder: Path, seed: int) -> Measured:
    lines = folder / "requests"
    repeated = workload in (INLINE, BARE)
    count = int(_MOST_PER_S[target.name].get(workload, 0) * settings.seconds)
    if workload == TEXT:
        write(lines, texts(2000))
    elif repeated:
        options = {"mm_payload": "none"} if workload == BARE else {}
        write(lines, about(Pictures(*SIZES["512x512"]), range(REPEATED), **options))
        _drive(target, lines, 1.0, repeat=True)  # from now on they were seen
    else:
        size = workload.removeprefix("new ")
        start = 1000 + seed * 100_000
        write(lines, about(Pictures(*SIZES[size]), range(start, start + count)))
    before = cpu_seconds(target.family())
    found = _drive(target, lines, settings.seconds, repeat=repeated or workload == TEXT)
    cpu = cpu_seconds(target.family()) - before
    if found.exhausted and target.name != NULL:
        raise SystemExit(f"{workload}: {count} requests were too few for {target.name}")
    return Measured(
        server=target.name,
        workload=workload,
        requests_per_s=found.good / found.seconds,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        cpu_ms=cpu * 1000 / max(1, found.good),
        bad=found.bad,
    )


def _drive(target: Target, lines: Path, seconds: float, *, repeat: bool) -> Wrk:
    script = Path(__file__).with_name("render.lua")
    command = [
        "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
        "-s", str(script), target.url + PATH, "--", str(lines), str(int(repeat)),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 90, check=True)
    if done.stderr.strip():
        _say(f"{target.name}: {done.stderr.strip()[:300]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Wrk)


def checks_of(measured: list[Measured], peaks: dict[str, int]) -> list[report.Check]:
    """What must hold."""

    def ratio(workload: str, other: str | None = None, figure: str = "requests_per_s") -> float:
        """Ours over the reference's, median of the rounds."""
        ours = [getattr(m, figure) for m in measured if (m.server, m.workload) == (OURS, workload)]
        theirs = [
            getattr(m, figure)
            for m in measured
            if (m.server, m.workload) == (REFERENCE, other or workload)
        ]
        return report.median(a / b for a, b in zip(ours, theirs, strict=True))

    return [
        report.Check("text, requests/s over the reference's", ratio(TEXT), 2),
        *(report.Check(f"{name}, requests/s over the reference's", ratio(name), 3) for name in NEW),
        report.Check(f"{INLINE}, requests/s over the reference's", ratio(INLINE), 8),
        report.Check(
            "the reference's CPU time per repeated picture over ours without tensors",
            1 / ratio(BARE, INLINE, "cpu_ms"),
            20,
        ),
        report.Check(
            "peak memory over the reference's", peaks[OURS] / peaks[REFERENCE], 1.2, at_least=False
        ),
        report.Check("refused requests", sum(m.bad for m in measured), 0, at_least=False),
    ]


def _table(measured: list[Measured]) -> str:
    rows = []
    for workload in WORKLOADS:
        for server in (OURS, REFERENCE, NULL):
            found = [m for m in measured if (m.workload, m.server) == (workload, server)]
            if found:
                medians: dict[str, Any] = {
                    name: report.median(getattr(m, name) for m in found)
                    for name in ("requests_per_s", "p50_ms", "p99_ms", "cpu_ms")
                }
                rows.append(
                    [
                        workload,
                        server,
                        f"{medians['requests_per_s']:.0f}",
                        f"{medians['p50_ms']:.1f}",
                        f"{medians['p99_ms']:.1f}",
                        f"{medians['cpu_ms']:.2f}",
                    ]
                )
    return report.table(["workload", "server", "requests/s", "p50 ms", "p99 ms", "CPU ms"], rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
