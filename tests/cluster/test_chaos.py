"""Replicas of every stage are killed, or hang, while clients ask (benchmarks/chaos.py has more)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.chaos import Blow, checks_of, run
from benchmarks.questions import ask, questions
from benchmarks.replaceable import running


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("blow", "count"), [("KILL", 4), ("STOP", 3)])
async def test_no_request_is_lost_and_no_token_wrong(
    tmp_path: Path, blow: Blow, count: int
) -> None:
    probes = {"probe_interval_s": 0.5, "probe_timeout_s": 2.0}
    outcome = await run(tmp_path, count, blow=blow, clients=8, images=40, seed=3, **probes)
    assert outcome.lost == []
    assert outcome.wrong == []
    failed = [str(check) for check in checks_of(outcome, count) if not check.kept]
    assert failed == []


STAGE_WAIT_S = 10.0


async def test_requests_wait_for_the_last_replica_of_a_stage_and_then_get_503(
    tmp_path: Path,
) -> None:
    counts = {"render": 1, "encode": 1, "prefill_decode": 1}
    asked = questions(10, seed=5)[:8]
    with running(tmp_path, counts, stage_wait_s=STAGE_WAIT_S) as cluster:
        [last] = cluster.of("prefill_decode")
        async with httpx.AsyncClient(timeout=60) as http:
            right = [await ask(http, cluster.url, one) for one in asked]
            await asyncio.to_thread(cluster.kill, last)
            waiting = [asyncio.ensure_future(ask(http, cluster.url, one)) for one in asked]
            await asyncio.to_thread(cluster.replace, last)
            for answer, expected in zip(await asyncio.gather(*waiting), right, strict=True):
                assert not answer.error
                assert answer.same(expected)

            await asyncio.to_thread(cluster.kill, last)
            began = time.monotonic()
            answers = await asyncio.gather(*(ask(http, cluster.url, one) for one in asked))
            assert {answer.status for answer in answers} == {503}
            assert all(int(answer.retry_after) > 0 for answer in answers)
            assert STAGE_WAIT_S - 1 < time.monotonic() - began < STAGE_WAIT_S + 10
            assert all("prefill" in answer.error for answer in answers)
