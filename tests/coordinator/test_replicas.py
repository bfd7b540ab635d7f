"""Who is handed out, in which order, and what is said when nobody is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from coordinator.clients.native import NativeClient
from coordinator.config import CoordinatorConfig, StageConfig
from coordinator.member import Member
from coordinator.replicas import ReplicaPool
from coordinator.topology import choose_plan, missing
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Overloaded, Unavailable
from protocol.replica import Fingerprint, Replica, ReplicaStatus, Role
from protocol.rpc import Method


class SilentClient:
    """Says that it is ready, and nothing else until told."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[ReplicaStatus] = asyncio.Queue()
        self.said.put_nowait(ReplicaStatus())
        self.resets = 0
        self.closed = False

    async def call(self, _method: Method[Any, Any], _request: Any, _deadline: Deadline) -> Any:
        return None

    async def stream(
        self, _method: Method[Any, Any], _request: Any, _deadline: Deadline
    ) -> AsyncGenerator[Any, None]:
        while True:
            yield await self.said.get()

    async def reset(self) -> None:
        self.resets += 1

    async def close(self) -> None:
        self.closed = True


def replica(name: str, role: Role, *, model: str = "m", engine: Any = "native") -> Replica:
    fingerprint = Fingerprint(model, "", "float32", "kv1/16") if engine == "native" else None
    return Replica(name, role, fingerprint=fingerprint, engine=engine, has_vision=True)


@contextlib.asynccontextmanager
async def pool_of(*replicas: Replica, **options: Any) -> AsyncIterator[ReplicaPool]:
    pool = ReplicaPool(CoordinatorConfig(**options), lambda _replica: SilentClient())
    pool.apply(replicas)
    deadline = Deadline.after(5)
    while not all(member.ready for member in pool.members()):
        await pool.changed(deadline)
    try:
        yield pool
    finally:
        await pool.stop()


def client(member: Member) -> SilentClient:
    assert isinstance(member.client, SilentClient)
    return member.client


async def test_waiters_are_served_in_the_order_they_came() -> None:
    config = StageConfig(concurrency=1)
    async with pool_of(replica("d", "decode"), decode=config) as pool:
        order: list[int] = []

        async def use(number: int) -> None:
            async with pool.lease("decode", Deadline.after(5)):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(use(number) for number in range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert pool.members()[0].in_flight == 0


async def test_a_full_queue_refuses_at_once() -> None:
    config = StageConfig(concurrency=1, queue=1)
    async with pool_of(replica("d", "decode"), decode=config) as pool:
        async with pool.lease("decode", Deadline.after(5)):
            waiting = asyncio.create_task(_take(pool))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded) as refused:
                await _take(pool)
            assert refused.value.retry_after
        await waiting


async def test_busy_is_told_from_absent() -> None:
    config = StageConfig(concurrency=1)
    async with pool_of(replica("d", "decode"), decode=config, stage_wait_s=0.02) as pool:
        async with pool.lease("decode", Deadline.after(5)):
            with pytest.raises(Overloaded):
                await _take(pool)
        with pytest.raises(Unavailable):
            async with pool.lease("prefill", Deadline.after(5)):
                pass


async def test_a_waiter_that_is_cancelled_takes_nothing() -> None:
    config = StageConfig(concurrency=1)
    async with pool_of(replica("d", "decode"), decode=config) as pool:
        async with pool.lease("decode", Deadline.after(5)):
            waiting = asyncio.create_task(_take(pool))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with pool.lease("decode", Deadline.after(1)) as member:
            assert member.in_flight == 1
        assert member.in_flight == 0


async def test_avoided_replicas_are_taken_where_nobody_else_is() -> None:
    async with pool_of(replica("a", "decode"), replica("b", "decode")) as pool:
        for _ in range(5):
            async with pool.lease("decode", Deadline.after(1), avoid={"a"}) as member:
                assert member.id == "b"
        async with pool.lease("decode", Deadline.after(1), avoid={"a", "b"}) as member:
            assert member.id in "ab"


async def test_draining_and_leaving_replicas_get_nothing_new() -> None:
    async with pool_of(replica("a", "decode"), replica("b", "decode")) as pool:
        first = pool.member("a")
        assert first is not None
        client(first).said.put_nowait(ReplicaStatus(draining=True))
        await pool.changed(Deadline.after(1))
        async with pool.lease("decode", Deadline.after(1)) as member:
            assert member.id == "b"
            pool.apply((replica("a", "decode"),))
            assert not client(member).closed
        with pytest.raises((Unavailable, DeadlineExceeded)):
            async with pool.lease("decode", Deadline.after(0.02)):
                pass
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client(member).closed


async def test_a_replica_on_trial_gets_one_call_at_a_time() -> None:
    async with pool_of(replica("a", "decode"), stage_wait_s=0.02) as pool:
        member = pool.members()[0]
        for _ in range(3):
            pool.answered(member, Unavailable("gone"))
        assert not member.ready
        while not member.ready:
            await pool.changed(Deadline.after(5))
        async with pool.lease("decode", Deadline.after(1)):
            with pytest.raises(Overloaded):
                await _take(pool)
            pool.answered(member, None)
            await _take(pool)


async def test_a_plan_takes_one_cohort_and_prefers_split() -> None:
    replicas = [replica(f"{role}1", role) for role in ("encode", "prefill", "decode")]
    async with pool_of(
        *replicas, replica("p2", "prefill", model="n"), replica("all", "all", model="n")
    ) as pool:
        for _ in range(10):
            plan = await choose_plan(pool, Deadline.after(1), media=True)
            assert plan.kind == "split"
            member = pool.member("prefill1")
            assert member is not None
            assert plan.cohort == member.cohort
        pool.apply((*replicas[:2], replica("all", "all", model="n")))
        assert (await choose_plan(pool, Deadline.after(1), media=True)).kind == "all"


async def test_text_needs_no_encoder() -> None:
    async with pool_of(replica("p", "prefill"), replica("d", "decode")) as pool:
        assert (await choose_plan(pool, Deadline.after(1), media=False)).kind == "split"
        assert missing(pool) == ["encode"]
        with pytest.raises(Unavailable) as refused:
            await choose_plan(pool, Deadline.after(0.02), media=True)
        assert "encode" in refused.value.message


async def test_foreign_decoders_take_no_kv_of_ours_but_any_encoder() -> None:
    async with pool_of(
        replica("e", "encode"),
        replica("p", "prefill"),
        replica("d", "decode", engine="vllm"),
    ) as pool:
        assert missing(pool) != []
    async with pool_of(
        replica("e", "encode"), replica("pd", "prefill_decode", engine="vllm")
    ) as pool:
        assert (await choose_plan(pool, Deadline.after(1), media=True)).kind == "fused"


async def _take(pool: ReplicaPool) -> None:
    async with pool.lease("decode", Deadline.after(5)):
        pass


async def test_a_replica_without_an_id_is_left_out() -> None:
    """As one that is about to start may describe itself."""
    pool = ReplicaPool(CoordinatorConfig(), lambda replica: NativeClient(replica.grpc, ""))
    pool.apply((Replica("", "encode"), Replica("e1", "encode", grpc="127.0.0.1:1")))
    assert [member.id for member in pool.members()] == ["e1"]
    await pool.stop()
