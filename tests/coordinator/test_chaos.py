"""Many clients while replicas of every stage die: no request is lost, no token wrong."""

from __future__ import annotations

import asyncio
import gc
import random

from protocol.replica import Role
from tests.coordinator.conftest import Stage, Start, events
from tests.coordinator.stub_words import expected

ROLES: tuple[Role, ...] = (
    "render", "render", "encode", "encode", "encode", "prefill", "prefill", "decode", "decode",
)  # fmt: skip


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


async def client(stage: Stage, number: int, pick: random.Random, done: asyncio.Event) -> int:
    """Ask until told to stop; every answer must be whole and right."""
    asked = 0
    while not done.is_set():
        images = [f"image:{pick.randrange(40)}" for _ in range(pick.randrange(3))]
        text, count = f"{number}-{asked}", pick.randrange(2, 24)
        response = await stage.chat(*images, text, max_tokens=count, stream=True)
        assert response.status_code == 200, response.text
        parts = events(response.text)
        assert not [part for part in parts if "error" in part]
        prompt = [2, *[9] * 4 * len(images), *(10 + ord(c) % 80 for c in text)]
        choices = [choice for part in parts for choice in part["choices"]]
        assert "".join(c["delta"].get("content", "") for c in choices) == words(
            expected(prompt, count)
        )
        assert choices[-1]["finish_reason"] == "length"
        asked += 1
    return asked


async def kill_and_replace(stage: Stage, role: Role, pick: random.Random, *, told: bool) -> None:
    """A replica of the role dies, before membership hears of it unless it was told to leave."""
    victim = pick.choice(stage.of(role))
    if not told:
        await victim.stop()
    await stage.remove(victim)
    await stage.add(role)
    await stage.ready()


async def test_replicas_of_every_stage_die_and_no_request_is_lost(start: Start) -> None:
    pick = random.Random(7)
    async with start(ROLES, http=True) as stage:
        for replica in stage.replicas:
            replica.token_s = 0.001
        done = asyncio.Event()
        clients = [
            asyncio.create_task(client(stage, number, random.Random(number), done))
            for number in range(16)
        ]
        for number in range(24):
            role = ROLES[(2, 5, 7, 0)[number % 4]]
            await kill_and_replace(stage, role, pick, told=number % 8 == 7)
            await asyncio.sleep(0.02)
        done.set()
        assert sum(await asyncio.gather(*clients)) > 50
        await stage.quiet()


async def test_clients_that_leave_at_any_moment_leave_nothing(start: Start) -> None:
    pick = random.Random(3)
    async with start(ROLES, http=True) as stage:
        for replica in stage.replicas:
            replica.token_s = 0.0005

        async def ask(number: int) -> None:
            request = stage.chat(f"image:{number % 30}", f"{number}", max_tokens=12, stream=True)
            if number % 2:
                assert (await request).status_code == 200
                return
            task = asyncio.create_task(request)
            await asyncio.sleep(pick.random() * 0.03)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for number in range(0, 300, 20):
            await asyncio.gather(*(ask(number + offset) for offset in range(20)))
        await stage.idle()
        gc.collect()
        assert stage.server.admission.requests == 0
        assert stage.server.admission.body_bytes == 0
        assert not any(task for task in asyncio.all_tasks() if "Encoding" in repr(task))
