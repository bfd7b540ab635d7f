"""No request is lost and no token is wrong while replicas of every stage are killed.

`python -m benchmarks.chaos --kills 40 --check` starts 2 render, 3 encode, 2 prefill and 2 decode
replicas of the demo model as processes, asks every question once undisturbed, and then lets 16
clients stream answers while one replica after the other, of each stage in turn, gets SIGKILL, the
next one as soon as the last is back. Every answer must be that of the undisturbed cluster, token
by token. `--signal STOP` stops replicas until the coordinator does without them, and lets them go
on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from benchmarks.questions import Answer, Question, ask, questions, share_true
from benchmarks.replaceable import Cluster, Slot, running
from benchmarks.report import Check, exit_status, quantile, write

REPLICAS = {"render": 2, "encode": 3, "prefill": 2, "decode": 2}
Blow = Literal["KILL", "STOP"]

_CLIENT_TIMEOUT_S = 120.0
_ORPHANS_END_S = 10.0


@dataclass(slots=True)
class Outcome:
    """What happened.

    Attributes:
        struck: stage -> replicas that were killed or stopped.
        lost: requests without a whole answer, and why.
        wrong: whole answers that differ from the undisturbed one: got, wanted.
        seconds: of the answers.
        true: share of the undisturbed answers that say what was drawn.
        orphans: processes that outlived the killed ones that had started them.
        retries: of the coordinator, by stage and kind of error.
    """

    struck: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    true: float = 0.0
    orphans: int = 0
    retries: dict[str, float] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """Requests that were sent while replicas died."""
        return len(self.seconds) + len(self.lost)


async def undisturbed(
    http: httpx.AsyncClient, url: str, asked: Sequence[Question], clients: int
) -> list[Answer]:
    """The answers while nothing is wrong.

    Raises:
        RuntimeError: one is not whole.
    """
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(asked))

    async def client() -> None:
        for number, one in waiting:
            answers[number] = await ask(http, url, one)

    await asyncio.gather(*(client() for _ in range(clients)))
    for answer in answers.values():
        if answer.error:
            raise RuntimeError(f"the undisturbed cluster failed: {answer.error}")
    return [answers[number] for number in range(len(asked))]


async def besiege(
    http: httpx.AsyncClient,
    url: str,
    asked: Sequence[Question],
    right: Sequence[Answer],
    done: asyncio.Event,
    outcome: Outcome,
    pick: random.Random,
) -> None:
    """One client: asks until told to stop, and compares."""
    while not done.is_set():
        number = pick.randrange(len(asked))
        answer = await ask(http, url, asked[number])
        if answer.error:
            outcome.lost.append(answer.error)
            continue
        outcome.seconds.append(answer.seconds)
        if not answer.same(right[number]):
            outcome.wrong.append((answer.text, right[number].text))


def strike(
    cluster: Cluster,
    kills: int,
    blow: Blow,
    outcome: Outcome,
    pick: random.Random,
    given_up: threading.Event,
) -> None:
    """Replicas of each stage in turn, one at a time; returns when the last is back."""
    for number, role in zip(range(kills), _turns(), strict=False):
        if given_up.is_set():
            return
        victim = pick.choice(cluster.of(role))
        _strike_one(cluster, victim, blow)
        outcome.struck[role] += 1
        _say(f"{number + 1}: {victim.name}, {outcome.asked} answered, {len(outcome.lost)} lost")


def _turns() -> Iterator[str]:
    while True:
        yield from ("encode", "prefill", "decode", "render")


def _strike_one(cluster: Cluster, victim: Slot, blow: Blow) -> None:
    if blow == "STOP":
        cluster.hang(victim)
        return
    cluster.kill(victim)
    cluster.replace(victim)


async def run(
    directory: Path,
    kills: int,
    *,
    blow: Blow = "KILL",
    clients: int = 16,
    images: int = 200,
    seed: int = 1,
    **config: Any,
) -> Outcome:
    """Everything; see the head of this file.

    Args:
        directory: for logs.
        kills: replicas to strike.
        blow: the signal.
        clients: that ask all the time.
        images: that the questions are about.
        seed: of the drawings, and of who is struck.
        config: keys of CoordinatorConfig.
    """
    outcome = Outcome()
    asked = questions(images, seed=100 + seed)
    with running(directory, REPLICAS, **config) as cluster:
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(timeout=_CLIENT_TIMEOUT_S, limits=limits) as http:
            right = await undisturbed(http, cluster.url, asked, clients)
            outcome.true = share_true(asked, right)
            _say(f"undisturbed: {outcome.true:.3f} of {len(asked)} answers are true")
            done, given_up = asyncio.Event(), threading.Event()
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    pick = random.Random(seed * 1000 + number)
                    group.create_task(besiege(http, cluster.url, asked, right, done, outcome, pick))
                try:
                    pick = random.Random(seed)
                    await asyncio.to_thread(strike, cluster, kills, blow, outcome, pick, given_up)
                finally:
                    given_up.set()
                    done.set()
        outcome.retries = {
            name: value
            for name, value in cluster.coordinator.metrics().items()
            if name.startswith("triptych_retries_total")
        }
        outcome.orphans = await _orphans(cluster)
    return outcome


async def _orphans(cluster: Cluster) -> int:
    """How many stay, after they had time to notice."""
    ends = time.monotonic() + _ORPHANS_END_S
    while cluster.orphans() and time.monotonic() < ends:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.2)
    return len(cluster.orphans())


async def _ending_when_told(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """A benchmark that is told to end ends what it started."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def checks_of(outcome: Outcome, kills: int) -> list[Check]:
    """What must hold."""
    least = min(outcome.struck[role] for role in REPLICAS)
    return [
        Check("replicas struck", sum(outcome.struck.values()), kills),
        Check("of the stage struck least", least, kills // 5),
        Check("requests answered", len(outcome.seconds), 5 * kills),
        Check("requests lost", len(outcome.lost), 0, at_least=False),
        Check("answers wrong", len(outcome.wrong), 0, at_least=False),
        Check("orphans", outcome.orphans, 0, at_least=False),
        Check("share of the undisturbed answers that are true", outcome.true, 0.9),
    ]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="directory for what the processes write")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a bound is not kept")
    given = parser.parse_args()
    # A replica that hangs is given up sooner than by default: there are many to go through.
    config = {"probe_interval_s": 0.5, "probe_timeout_s": 2.0} if given.signal == "STOP" else {}
    with tempfile.TemporaryDirectory() as directory:
        outcome = asyncio.run(
            _ending_when_told(
                run(
                    given.logs or Path(directory),
                    given.kills,
                    blow=given.signal,
                    clients=given.clients,
                    images=given.images,
                    seed=given.seed,
                    **config,
                )
            )
        )
    p50, p99 = (quantile(outcome.seconds, share) for share in (0.5, 0.99))
    longest = max(outcome.seconds, default=0.0)
    print(f"{outcome.asked} requests, seconds: p50 {p50:.2f}, p99 {p99:.2f}, longest {longest:.2f}")
    print(f"struck with SIG{given.signal}: {dict(outcome.struck)}")
    print(f"retries: {outcome.retries}")
    for error in outcome.lost[:10]:
        print(f"lost: {error}")
    for got, wanted in outcome.wrong[:10]:
        print(f"wrong: {got!r} instead of {wanted!r}")
    checks = checks_of(outcome, given.kills)
    if given.json is not None:
        settings = {
            "kills": given.kills,
            "signal": given.signal,
            "clients": given.clients,
            "images": given.images,
        }
        figures = {
            "asked": outcome.asked,
            "struck": outcome.struck,
            "lost": outcome.lost,
            "wrong": outcome.wrong,
            "seconds": {"p50": p50, "p99": p99, "longest": longest},
            "retries": outcome.retries,
        }
        write(given.json, "chaos", settings, figures, checks)
    return exit_status(checks, enforced=given.check)


if __name__ == "__main__":
    sys.exit(main())
