"""What clients get from a coordinator that is offered five times what its stages can serve.

`python -m benchmarks.overload --check` has wrk send chat requests for 60 s, first to stub stages
whose service time is slept through, so that their capacity is known, then to replicas of the demo
model, whose capacity is measured first. Goodput, the latency of refusals (of a client that asks
beside wrk), what was answered otherwise, and the memory of every process. `wrk` must be on the
PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from benchmarks.coordinator import body, process
from benchmarks.load import run as closed_loop
from benchmarks.pipeline import requests_of
from benchmarks.replaceable import running
from benchmarks.report import Check, exit_status, quantile, table, write
from benchmarks.usage import pss_bytes

TIMES = 5.0
"""Offered load over capacity."""

SLOTS, SERVICE_S = 16, 0.2
IN_FLIGHT = 64
"""Requests that the coordinator lets in over the stub stages: one service time's worth waits."""

_SCRIPT = Path(__file__).with_suffix(".lua")
_CLIENT_TIMEOUT_S = 120
_PROBE_S = 0.05


@dataclass(frozen=True, slots=True)
class Answers:
    """What wrk got in `seconds`: 200 with the answer, 429, 429 without Retry-After, others."""

    seconds: float
    served: int
    refused: int
    other: int
    hasty: int
    socket_errors: int
    timeouts: int

    @property
    def per_s(self) -> float:
        """Requests that were answered in any way, per second: the load that was offered."""
        return (self.served + self.refused + self.other) / self.seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """One overload.

    Attributes:
        capacity: requests/s that the stages can serve.
        refusal_s: latencies of the refusals.
        memory: PSS of the coordinator in bytes, sampled over time.
    """

    stages: str
    capacity: float
    answers: Answers
    refusal_s: list[float]
    memory: list[int]

    @property
    def goodput(self) -> float:
        """Served per second over what could be."""
        return self.answers.served / self.answers.seconds / self.capacity

    @property
    def growth(self) -> float:
        """Largest memory of the second half over that of the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) / max(self.memory[:half])


async def overload(
    stages: str,
    url: str,
    capacity: float,
    bodies: Sequence[bytes],
    mark: str,
    seconds: float,
    pids: Sequence[int],
) -> Figures:
    """Offer five times the capacity and watch.

    Args:
        stages: a name for the table.
        url: of the chat endpoint.
        capacity: requests/s.
        bodies: what is sent.
        mark: part of every right answer.
        seconds: how long.
        pids: processes whose memory is watched.
    """
    # Half a second between the requests of a connection, and those that are served take longer:
    # a few more connections make up for it.
    connections = max(64, int(capacity * TIMES * 0.6) + 2 * IN_FLIGHT)
    pause_ms = int(1000 * (connections - IN_FLIGHT) / (capacity * TIMES * 1.15))
    refusals: list[float] = []
    memory: list[int] = []
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(b"\n".join(bodies) + b"\n")
        file.flush()
        command = [
            "wrk", "--threads", "1", "--connections", str(connections),
            "--duration", f"{seconds:.0f}s", "--timeout", f"{_CLIENT_TIMEOUT_S}s",
            "--script", str(_SCRIPT), url, "--", file.name, str(pause_ms), mark,
        ]  # fmt: skip
        wrk = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        watch = asyncio.create_task(_watch(pids, memory))
        probe = asyncio.create_task(_probe(url, bodies, refusals))
        try:
            said, _ = await wrk.communicate()
        finally:
            if wrk.returncode is None:
                wrk.kill()
            for task in (watch, probe):
                task.cancel()
            await asyncio.gather(watch, probe, return_exceptions=True)
    answers = Answers(**json.loads(said.decode().splitlines()[-1]))
    return Figures(stages, capacity, answers, refusals, memory)


async def _watch(pids: Sequence[int], memory: list[int]) -> None:
    while True:
        memory.append(sum(pss_bytes(pid) for pid in pids))
        await asyncio.sleep(0.5)


async def _probe(url: str, bodies: Sequence[bytes], refusals: list[float]) -> None:
    """Ask now and then; only how long refusals take is of interest."""
    headers = {"content-type": "application/json"}
    await asyncio.sleep(1)  # the queues are full then
    async with httpx.AsyncClient(timeout=_CLIENT_TIMEOUT_S) as http:

        async def one(content: bytes) -> None:
            began = time.perf_counter()
            answer = await http.post(url, content=content, headers=headers)
            if answer.status_code == 429:
                refusals.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as group:
            number = 0
            while True:
                group.create_task(one(bodies[number % len(bodies)]))
                number += 1
                await asyncio.sleep(_PROBE_S)


async def over_stubs(seconds: float) -> Figures:
    """Stub stages that sleep."""
    arguments = (str(SLOTS), str(SERVICE_S))
    with (
        process("benchmarks.sleeping_stages", *arguments) as (_, addresses),
        process("benchmarks.fronts", "coordinator", addresses, str(IN_FLIGHT)) as (front, url),
    ):
        chat = f"{url}/v1/chat/completions"
        await _ready(chat)
        return await overload(
            "sleeping", chat, SLOTS / SERVICE_S, [body(None), body(1)], " t18", seconds, [front.pid]
        )


async def _ready(url: str) -> None:
    async with httpx.AsyncClient(timeout=10) as http:
        for _ in range(200):
            answer = await http.post(
                url, content=body(None), headers={"content-type": "application/json"}
            )
            if answer.status_code == 200:
                return
            await asyncio.sleep(0.05)
    raise RuntimeError(f"{url} does not become ready")


async def over_demo(directory: Path, seconds: float) -> Figures:
    """Replicas of the demo model, one of each role; capacity is what 16 clients get."""
    counts = {"render": 1, "encode": 1, "prefill": 1, "decode": 1}
    with running(directory, counts) as cluster:
        await closed_loop(cluster.url, requests_of(32, seed=1), 16)
        measured = await closed_loop(cluster.url, requests_of(128, seed=2), 16)
        if measured.errors:
            raise RuntimeError(measured.errors[0])
        bodies = [one.body for one in requests_of(256, seed=3)]
        everybody = [slot.process for slot in cluster.slots] + cluster.coordinators
        pids = [one.pid for server in everybody for one in server.family()]
        return await overload(
            "demo model", cluster.url, measured.requests_per_s, bodies, "[DONE]", seconds, pids
        )


def checks_of(figures: Figures) -> list[Check]:
    """What must hold: more where the capacity is known."""
    name, answers = figures.stages, figures.answers
    checks = [
        Check(f"{name}: offered over capacity", answers.per_s / figures.capacity, TIMES),
        Check(f"{name}: time-outs", answers.timeouts, 0, at_least=False),
        Check(f"{name}: neither served nor refused", answers.other, 0, at_least=False),
        Check(f"{name}: connections lost", answers.socket_errors, 0, at_least=False),
        Check(f"{name}: refused without Retry-After", answers.hasty, 0, at_least=False),
        Check(f"{name}: memory, second half over first", figures.growth, 1.1, at_least=False),
    ]
    if name == "sleeping":
        p99 = 1000 * quantile(figures.refusal_s, 0.99)
        checks += [
            Check(f"{name}: goodput over capacity", figures.goodput, 0.9),
            Check(f"{name}: refusals seen", len(figures.refusal_s), 100),
            Check(f"{name}: p99 of refusals, ms", p99, 50, at_least=False),
        ]
    return checks


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=("sleeping", "demo"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    given = parser.parse_args()
    # A benchmark that is told to end ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if shutil.which("wrk") is None:
        parser.error("wrk is not on the PATH: apt-get install wrk, or brew install wrk")
    figures: list[Figures] = []
    if given.only != "demo":
        figures.append(asyncio.run(over_stubs(given.seconds)))
    if given.only != "sleeping":
        with tempfile.TemporaryDirectory() as directory:
            figures.append(asyncio.run(over_demo(Path(directory), given.seconds)))
    rows = [
        (
            one.stages,
            f"{one.capacity:.0f}",
            f"{one.answers.per_s:.0f}",
            f"{one.answers.served / one.answers.seconds:.1f}",
            f"{100 * one.answers.refused / one.answers.seconds / one.answers.per_s:.0f} %",
            f"{1000 * quantile(one.refusal_s, 0.5):.1f}",
            f"{1000 * quantile(one.refusal_s, 0.99):.1f}",
            f"{max(one.memory) / 2**20:.0f}",
        )
        for one in figures
    ]
    head = (
        "stages", "capacity/s", "offered/s", "served/s", "refused", "refusal p50 ms", "p99 ms",
        "peak MiB",
    )  # fmt: skip
    print(table(head, rows))
    checks = [check for one in figures for check in checks_of(one)]
    if given.json is not None:
        written = [
            {
                "stages": one.stages,
                "capacity": one.capacity,
                "answers": asdict(one.answers),
                "refusal_ms": [
                    1000 * quantile(one.refusal_s, share) for share in (0.5, 0.9, 0.99, 1.0)
                ],
                "memory_bytes": one.memory,
            }
            for one in figures
        ]
        write(given.json, "overload", {"seconds": given.seconds}, written, checks)
    return exit_status(checks, enforced=given.check)


if __name__ == "__main__":
    sys.exit(main())
