"""Thousands of requests, half of them cut at a random moment, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from protocol.replica import Role
from tests.coordinator.conftest import Stage, Start
from tests.coordinator.stub_words import eventually

ROLES: tuple[Role, ...] = ("render", "encode", "encode", "prefill", "decode")
REQUESTS = 5000
ROUND = 500
"""After so many the stubs forget what they were asked, which would be taken for a leak of ours."""

AT_ONCE = 25
LONGEST_S = 0.15
"""A request takes about as long on a quiet machine with so many at once."""


async def ask(stage: Stage, number: int, pick: random.Random) -> None:
    """Half of the requests are left at a moment from before the first byte to after the last."""
    images = [f"image:{pick.randrange(60)}" for _ in range(pick.randrange(3))]
    asked = stage.chat(*images, f"{number}", max_tokens=6, stream=bool(number % 3))
    if number % 2:
        assert (await asked).status_code == 200
        return
    task = asyncio.create_task(asked)
    await asyncio.wait({task}, timeout=pick.random() ** 2 * LONGEST_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def many(stage: Stage, count: int, pick: random.Random) -> None:
    """Ask with connections of its own, which are closed by the end on both sides."""
    before = stage.client
    async with httpx.AsyncClient(base_url=before.base_url, timeout=20) as stage.client:
        for number in range(0, count, AT_ONCE):
            await asyncio.gather(*(ask(stage, number + one, pick) for one in range(AT_ONCE)))
    stage.client, port = before, before.base_url.port
    await eventually(lambda: not any(c.laddr.port == port and c.raddr for c in connections()))
    await stage.idle()
    await stage.quiet()
    stage.cluster.calls.clear()


def connections() -> list[Any]:
    return psutil.Process().net_connections("inet")


def objects() -> int:
    gc.collect()
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.timeout(600)
async def test_five_thousand_requests_leave_nothing(start: Start) -> None:
    pick = random.Random(5)
    process = psutil.Process()
    async with start(ROLES, http=True) as stage:
        for replica in stage.replicas:
            replica.token_s = 0.001
        await many(stage, ROUND, pick)  # caches, pools and the allocator fill
        stage.cluster.cancelled.clear()
        tasks, sockets = len(asyncio.all_tasks()), len(connections())
        kept, memory = objects(), process.memory_info().rss
        for _ in range(REQUESTS // ROUND - 1):
            await many(stage, ROUND, pick)
        cancelled = len(stage.cluster.cancelled)
        stage.cluster.cancelled.clear()
        assert cancelled > REQUESTS / 50  # some were cut while they decoded
        admission = stage.server.admission
        counts = (admission.requests, admission.body_bytes, admission.image_tokens)
        assert counts == (0, 0, 0)
        assert admission.kv_tokens == 0
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        await eventually(lambda: len(connections()) <= sockets)
        assert objects() < 1.05 * kept
        assert process.memory_info().rss < 1.05 * memory
