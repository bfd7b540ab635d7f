"""Thousands of requests, half of them cut at a random moment, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random

import psutil
import pytest

from protocol.replica import Role
from tests.coordinator.conftest import Stage, Start
from tests.coordinator.stub_words import eventually

ROLES: tuple[Role, ...] = ("render", "encode", "encode", "prefill", "decode")
REQUESTS = 5000
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
    for number in range(0, count, AT_ONCE):
        await asyncio.gather(*(ask(stage, number + one, pick) for one in range(AT_ONCE)))
    await stage.idle()
    await stage.quiet()


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
        await many(stage, 500, pick)  # caches, pools and the allocator fill
        stage.cluster.calls.clear()
        stage.cluster.cancelled.clear()
        tasks, sockets = len(asyncio.all_tasks()), len(process.net_connections())
        kept, memory = objects(), process.memory_info().rss
        await many(stage, REQUESTS - 500, pick)
        cancelled = len(stage.cluster.cancelled)
        stage.cluster.calls.clear()
        stage.cluster.cancelled.clear()
        assert cancelled > REQUESTS / 50  # some were cut while they decoded
        admission = stage.server.admission
        counts = (admission.requests, admission.body_bytes, admission.image_tokens)
        assert counts == (0, 0, 0)
        assert admission.kv_tokens == 0
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        await eventually(lambda: len(process.net_connections()) <= sockets)
        assert objects() < 1.05 * kept
        assert process.memory_info().rss < 1.05 * memory
