"""What the coordinator costs, over stages that answer at once.

`python -m benchmarks.coordinator` prints requests/s, CPU per request and latency for text and for
pictures of 1 and 20 MB of pixels, beside a plain proxy that makes the Renderer API document's
calls with JSON bodies, and the peak memory with 32 requests of 20 MB in flight. `--json FILE`
writes the figures, `--check` fails where a bound is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec
import psutil

from benchmarks.report import Check, exit_status, quantile, table, write
from benchmarks.usage import MemoryPeaks, cpu_seconds, pss_bytes

FRONTS = ("coordinator", "proxy")
SIZES: dict[str, int | None] = {"text": None, "1 MB": 1, "20 MB": 20}
"""Name of a kind of request -> megabytes of pixels."""

TIMES = {"text": 1.0, "1 MB": 5.0, "20 MB": 10.0}
"""Times the proxy's requests/s that the coordinator must give."""

MEMORY_CLIENTS = 32
MEMORY_BOUND = 200 * 2**20


@dataclass(frozen=True, slots=True)
class Figures:
    """One front with one kind of request.

    Attributes:
        requests_per_s: with all clients.
        cpu_ms: of the front's process, per request.
        p50_ms, p99_ms: latency of one client alone; the stages answer at once, so it is what the
            front and the calls cost.
    """

    front: str
    kind: str
    requests_per_s: float
    cpu_ms: float
    p50_ms: float
    p99_ms: float


@contextlib.contextmanager
def process(module: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A part in a process of its own, and the line that it prints when it is ready."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            if child.stdout is None or child.stdin is None:
                raise RuntimeError("the child has no pipes")
            yield child, child.stdout.readline().strip()
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
        finally:
            child.kill()


def body(megabytes: int | None) -> bytes:
    """A chat request whose picture has that many megabytes of pixels."""
    messages = [{"role": "user", "content": "What is in the picture?"}]
    size = {} if megabytes is None else {"user": str(megabytes)}
    return msgspec.json.encode({"messages": messages, **size})


async def load(url: str, request: bytes, clients: int, seconds: float) -> tuple[int, list[float]]:
    """Requests answered in a closed loop, and their latencies in seconds."""
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    async def client(session: httpx.AsyncClient) -> None:
        for _ in itertools.count():
            began = time.perf_counter()
            if began >= ends:
                return
            answer = await session.post("/v1/chat/completions", content=request)
            if answer.status_code != 200 or " t18" not in answer.text:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
            latencies.append(time.perf_counter() - began)

    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return len(latencies), latencies


async def ready(url: str) -> None:
    """Wait until the front answers."""
    async with httpx.AsyncClient(base_url=url, timeout=10) as session:
        for _ in range(200):
            answer = await session.post(
                "/v1/chat/completions",
                content=body(None),
                headers={"content-type": "application/json"},
            )
            if answer.status_code == 200:
                return
            await asyncio.sleep(0.05)
    raise RuntimeError(f"{url} does not become ready")


async def measure(
    front: str, url: str, family: list[psutil.Process], kind: str, clients: int, seconds: float
) -> Figures:
    """One front with one kind of request."""
    request = body(SIZES[kind])
    await load(url, request, clients, seconds / 4)
    before, began = cpu_seconds(family), time.perf_counter()
    count, _ = await load(url, request, clients, seconds)
    spent, cpu = time.perf_counter() - began, cpu_seconds(family) - before
    _, latencies = await load(url, request, 1, seconds / 2)
    return Figures(
        front,
        kind,
        count / spent,
        1000 * cpu / max(1, count),
        1000 * quantile(latencies, 0.5),
        1000 * quantile(latencies, 0.99),
    )


async def peak_memory(url: str, family: list[psutil.Process], seconds: float) -> int:
    """Bytes above idle with many large requests in flight."""
    idle = sum(pss_bytes(one.pid) for one in family)
    with MemoryPeaks({"front": family}, period_s=0.02) as sampled:
        await load(url, body(20), MEMORY_CLIENTS, seconds)
    return sampled.peaks["front"] - idle


def run(clients: int, seconds: float) -> tuple[list[Figures], dict[str, int]]:
    """Everything, one front after the other."""
    figures: list[Figures] = []
    memory: dict[str, int] = {}
    with process("benchmarks.instant_stages") as (_, addresses):
        for front in FRONTS:
            with process("benchmarks.fronts", front, addresses) as (child, url):
                family = [psutil.Process(child.pid)]
                asyncio.run(ready(url))
                for kind in SIZES:
                    figures.append(  # noqa: PERF401
                        asyncio.run(measure(front, url, family, kind, clients, seconds))
                    )
                memory[front] = asyncio.run(peak_memory(url, family, seconds))
    return figures, memory


def checks_of(figures: list[Figures], memory: dict[str, int]) -> list[Check]:
    """The bounds that the coordinator keeps."""
    rates = {(one.front, one.kind): one.requests_per_s for one in figures}
    checks = [
        Check(
            f"requests/s over the proxy's, {kind}",
            rates["coordinator", kind] / rates["proxy", kind],
            times,
        )
        for kind, times in TIMES.items()
    ]
    above = memory["coordinator"] / 2**20
    bound = MEMORY_BOUND / 2**20
    return [*checks, Check("MiB above idle, 32 x 20 MB", above, bound, at_least=False)]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.coordinator", description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="per measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    asked = parser.parse_args()
    figures, memory = run(asked.clients, asked.seconds)
    rows = [
        (
            f"{one.front}, {one.kind}",
            f"{one.requests_per_s:.0f}",
            f"{one.cpu_ms:.2f}",
            f"{1000 / one.cpu_ms:.0f}",
            f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}",
        )
        for one in figures
    ]
    head = ("", "requests/s", "CPU ms", "requests/s per core", "p50 ms", "p99 ms")
    print(table(head, rows))
    for front, peak in memory.items():
        print(f"{front}: {peak / 2**20:.0f} MiB above idle with {MEMORY_CLIENTS} x 20 MB in flight")
    checks = checks_of(figures, memory)
    if asked.json is not None:
        settings = {"clients": asked.clients, "seconds": asked.seconds}
        written = {"fronts": [asdict(one) for one in figures], "peak_bytes": memory}
        write(asked.json, "coordinator", settings, written, checks)
    return exit_status(checks, enforced=asked.check)


if __name__ == "__main__":
    sys.exit(main())
