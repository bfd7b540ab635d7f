"""What requests that are cut at a random moment leave behind in a cluster of processes.

`python -m benchmarks.leaks --check` sends requests about new and repeated pictures to one replica
of each role of the demo model, half of which are left at a random moment, from before the first
byte to after the last. Then every server must hold nothing: no request, lease, block or offer; as
many sockets as before, and 5 % more memory than after the first fifth at most.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.questions import ask, questions
from benchmarks.replaceable import running
from benchmarks.report import Check, exit_status, table, write
from benchmarks.usage import pss_bytes
from tests.cluster.processes import ServerProcess

GAUGES = (
    "triptych_requests_running",
    "triptych_render_running",
    "triptych_worker_running_requests",
    "triptych_worker_waiting_requests",
    "triptych_worker_kv_blocks_used",
    "triptych_worker_kv_pinned_requests",
    "triptych_worker_encoder_waiting_items",
    "triptych_ec_leases",
    "triptych_ec_offers",
)
COUNTS = {"render": 1, "encode": 2, "prefill": 1, "decode": 1}
LONGEST_S = 1.5
"""What a request takes at most while so many are made, about."""

_GIVEN_BACK_S = 45.0
"""Leases of a call that was cut off end by expiry where nobody can release them."""


@dataclass(frozen=True, slots=True)
class Left:
    """What one server has after the requests, and had before them."""

    name: str
    held: dict[str, float]
    sockets: tuple[int, int]
    memory: tuple[int, int]


async def cut(
    http: httpx.AsyncClient, url: str, count: int, clients: int, pick: random.Random, pictures: int
) -> tuple[int, list[str]]:
    """Ask; returns how many were cut, and what went wrong with the others."""
    asked = questions(pictures, seed=pick.randrange(1 << 20))
    waiting = iter(range(count))
    errors: list[str] = []
    left = 0

    async def client() -> None:
        nonlocal left
        for number in waiting:
            request = asyncio.ensure_future(ask(http, url, pick.choice(asked)))
            if number % 2:
                answer = await request
                if answer.error:
                    errors.append(answer.error)
                continue
            await asyncio.wait({request}, timeout=pick.random() ** 2 * LONGEST_S)
            left += not request.done()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    await asyncio.gather(*(client() for _ in range(clients)))
    return left, errors


async def run(directory: Path, count: int, clients: int = 16) -> tuple[list[Left], int, list[str]]:
    """Everything; see the head of this file.

    Returns:
        What each server has left, how many requests were cut, and what went wrong with others.
    """
    pick = random.Random(9)
    with running(directory, COUNTS) as cluster:
        servers = {slot.name: slot.process for slot in cluster.slots}
        servers["coordinator"] = cluster.coordinator
        async with httpx.AsyncClient(timeout=120) as http:
            await cut(http, cluster.url, count // 5, clients, pick, 60)
        await given_back(servers)
        before = {name: _size(server) for name, server in servers.items()}
        async with httpx.AsyncClient(timeout=120) as http:
            left, errors = await cut(http, cluster.url, count - count // 5, clients, pick, 200)
        held = await given_back(servers)
        after = {name: _size(server) for name, server in servers.items()}
        found = [
            Left(
                name,
                held[name],
                (before[name][0], after[name][0]),
                (before[name][1], after[name][1]),
            )
            for name in servers
        ]
        return found, left, errors


async def given_back(servers: Mapping[str, ServerProcess]) -> dict[str, dict[str, float]]:
    """What each server holds once nothing changes any more, or when patience is over."""
    ends = time.monotonic() + _GIVEN_BACK_S
    while True:
        held = {name: _held(server) for name, server in servers.items()}
        if not any(held.values()) or time.monotonic() > ends:
            return held
        await asyncio.sleep(0.5)


def _held(server: ServerProcess) -> dict[str, float]:
    samples = server.metrics()
    return {name: samples[name] for name in GAUGES if samples.get(name)}


def _size(server: ServerProcess) -> tuple[int, int]:
    """Sockets and memory of a server and its children."""
    family = server.family()
    sockets = sum(len(one.net_connections()) for one in family)
    return sockets, sum(pss_bytes(one.pid) for one in family)


def checks_of(found: list[Left], left: int, errors: list[str], count: int) -> list[Check]:
    """What must hold."""
    checks = [
        Check("requests cut", left, count / 5),
        Check("other requests that failed", len(errors), 0, at_least=False),
    ]
    for one in found:
        growth = one.memory[1] / one.memory[0]
        sockets = one.sockets[1] - one.sockets[0]
        checks += [
            Check(f"{one.name}: things held {one.held}", len(one.held), 0, at_least=False),
            Check(f"{one.name}: sockets more", sockets, 0, at_least=False),
            Check(f"{one.name}: memory after over before", growth, 1.05, at_least=False),
        ]
    return checks


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.leaks", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found, left, errors = asyncio.run(run(Path(directory), given.requests))
    rows = [
        (
            one.name,
            str(one.held or "nothing"),
            f"{one.sockets[0]} {one.sockets[1]}",
            f"{one.memory[0] / 2**20:.1f} {one.memory[1] / 2**20:.1f}",
        )
        for one in found
    ]
    print(table(("", "held", "sockets", "MiB"), rows))
    for error in errors[:5]:
        print(f"failed: {error}")
    checks = checks_of(found, left, errors, given.requests)
    if given.json is not None:
        write(given.json, "leaks", {"requests": given.requests}, found, checks)
    return exit_status(checks, enforced=given.check)


if __name__ == "__main__":
    sys.exit(main())
