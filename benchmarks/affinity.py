"""What affinity by content is worth, and what its load bound costs: a simulation of the policies.

`python -m benchmarks.affinity --check` plays requests for items, a few of which are popular, on
encode replicas with bounded stores, through the coordinator's own routing policies. An item that a
replica's store has costs nothing there; another is queued and encoded. `reserve` and the directory
are left out: they undo much of what a bad policy does, by asking more.

Columns: encodes per request; the busiest replica's work over the mean; how long an item takes, in
encode times.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import Check, exit_status, quantile, table, write
from coordinator.routing.base import Policy
from coordinator.routing.consistent_hash import BoundedConsistentHash
from coordinator.routing.least_loaded import LeastLoaded

REPLICAS = 8
ITEMS = 12000
STORE = 400
"""Items that a replica's store holds: together they hold a quarter of all."""

LOAD = 2.0
"""Requests per encode time and replica: least loaded encoders are busy nine tenths of the time."""


class Replica:
    """One encode replica: a queue and a store."""

    def __init__(self, number: int) -> None:
        self.id = f"encode-{number}"
        self.work = 0.0
        self._store: OrderedDict[str, float] = OrderedDict()
        self._ends: list[float] = []

    @property
    def load(self) -> float:
        """Items that are queued or encoded."""
        return len(self._ends)

    def pass_to(self, now: float) -> None:
        """Forget what has ended."""
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)

    def ask(self, item: str, now: float) -> tuple[float, bool]:
        """When the item is there, and whether it had to be encoded for this."""
        if item in self._store:
            self._store.move_to_end(item)
            return max(now, self._store[item]), False
        end = max([now, *self._ends]) + 1.0
        heapq.heappush(self._ends, end)
        self.work += 1.0
        self._store[item] = end
        if len(self._store) > STORE:
            self._store.popitem(last=False)
        return end, True


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy."""

    policy: str
    encodes: float
    busiest: float
    p50: float
    p99: float


class Anybody:
    """A replica at random."""

    def pick(self, candidates: Sequence[Replica], _key: str | None) -> Replica:
        """As `Policy.pick`."""
        return random.choice(candidates)


POLICIES: dict[str, Policy] = {
    "random": Anybody(),  # type: ignore[dict-item]
    "least loaded": LeastLoaded(),
    "hash, no bound": BoundedConsistentHash(1e9),
    "hash, bound 2": BoundedConsistentHash(2.0),
    "hash, bound 1.25": BoundedConsistentHash(1.25),
    "hash, bound 1": BoundedConsistentHash(1.0),
}
DEFAULT = "hash, bound 1.25"


def play(name: str, policy: Policy, requests: int, seed: int = 1) -> Figures:
    """Requests at random times for items of Zipf's popularity."""
    chance = random.Random(seed)
    random.seed(seed)
    popularity = [1 / rank for rank in range(1, ITEMS + 1)]
    asked = chance.choices([f"item-{rank}" for rank in range(ITEMS)], popularity, k=requests)
    replicas = [Replica(number) for number in range(REPLICAS)]
    now, encodes = 0.0, 0
    times: list[float] = []
    work: Counter[str] = Counter()
    for count, item in enumerate(asked):
        now += chance.expovariate(LOAD * REPLICAS)
        for replica in replicas:
            replica.pass_to(now)
        there, encoded = policy.pick(replicas, item).ask(item, now)
        if count >= requests // 4:  # the stores are full
            encodes += encoded
            times.append(there - now)
        else:
            work = Counter({replica.id: int(replica.work) for replica in replicas})
    shares = [replica.work - work[replica.id] for replica in replicas]
    return Figures(
        name,
        encodes / len(times),
        max(shares) / (sum(shares) / REPLICAS),
        quantile(times, 0.5),
        quantile(times, 0.99),
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.affinity", description=__doc__)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    given = parser.parse_args()
    figures = {name: play(name, policy, given.requests) for name, policy in POLICIES.items()}
    rows = [
        (f.policy, f"{f.encodes:.3f}", f"{f.busiest:.2f}", f"{f.p50:.2f}", f"{f.p99:.2f}")
        for f in figures.values()
    ]
    print(table(("policy", "encodes/request", "busiest/mean", "p50", "p99"), rows))
    ours = figures[DEFAULT]
    checks = [
        Check(
            "encodes over those of the least loaded policy",
            ours.encodes / figures["least loaded"].encodes,
            0.75,
            at_least=False,
        ),
        Check(
            "p99 over that without a bound",
            ours.p99 / figures["hash, no bound"].p99,
            1.0,
            at_least=False,
        ),
        Check("busiest replica over the mean", ours.busiest, 1.25, at_least=False),
    ]
    if given.json is not None:
        settings = {"replicas": REPLICAS, "items": ITEMS, "store": STORE, "load": LOAD}
        write(given.json, "affinity", settings, [asdict(f) for f in figures.values()], checks)
    return exit_status(checks, enforced=given.check)


if __name__ == "__main__":
    sys.exit(main())
