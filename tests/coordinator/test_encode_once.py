"""No embedding is computed twice while one of them is there or on its way."""

from __future__ import annotations

import asyncio

from coordinator.routing.consistent_hash import home
from protocol.errors import TransferError, Unavailable
from protocol.rpc import HeldItem, Holdings
from tests.coordinator.conftest import SPLIT, Stage, Start
from tests.coordinator.stub_words import eventually


def calls(stage: Stage) -> int:
    return sum(replica.served["encode"] for replica in stage.of("encode"))


async def test_requests_at_once_share_one_encode(start: Start) -> None:
    async with start(SPLIT) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = [asyncio.create_task(stage.chat("image:a", f"{i}")) for i in range(8)]
        await eventually(lambda: stage.of("render")[0].served["render"] == 8)
        await eventually(lambda: calls(stage) == 1)
        for replica in stage.of("encode"):
            replica.gate.set()
        assert {(await one).status_code for one in running} == {200}
        assert stage.cluster.encodes == {"a": 1}
        assert calls(stage) == 1
        await stage.idle()


async def test_a_held_item_is_neither_encoded_nor_asked_for_again(start: Start) -> None:
    async with start(SPLIT) as stage:
        for i in range(4):
            assert (await stage.chat("image:a", f"{i}")).status_code == 200
        assert calls(stage) == 1


async def test_the_flight_goes_on_when_its_leader_is_cancelled(start: Start) -> None:
    async with start(SPLIT, http=True) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        leader = asyncio.create_task(stage.chat("image:a", "leader"))
        await eventually(lambda: calls(stage) == 1)
        follower = asyncio.create_task(stage.chat("image:a", "follower"))
        await eventually(lambda: stage.of("render")[0].served["render"] == 2)
        leader.cancel()
        await asyncio.gather(leader, return_exceptions=True)
        for replica in stage.of("encode"):
            replica.gate.set()
        assert (await follower).status_code == 200
        assert stage.cluster.encodes == {"a": 1}
        await stage.idle()


async def test_a_follower_goes_on_with_its_own_pixels_when_the_leaders_are_gone(
    start: Start,
) -> None:
    async with start(SPLIT) as stage:
        first = [TransferError("pixels are gone", "missing", ("a",))]
        for replica in stage.of("encode"):
            replica.fail = lambda _name: first.pop() if first else None
        answers = await asyncio.gather(*(stage.chat("image:a", f"{i}") for i in range(4)))
        assert {answer.status_code for answer in answers} == {200}
        assert stage.cluster.encodes == {"a": 1}


async def test_the_last_to_leave_cancels_the_encode(start: Start) -> None:
    async with start(SPLIT, http=True) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = [asyncio.create_task(stage.chat("image:a", f"{i}")) for i in range(2)]
        await eventually(lambda: calls(stage) == 1)
        await eventually(lambda: stage.of("render")[0].served["render"] == 2)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await stage.idle()


async def test_salts_keep_tenants_apart(start: Start) -> None:
    async with start(SPLIT) as stage:
        for salt in ("one", "two", "one"):
            assert (await stage.chat("image:a", cache_salt=salt)).status_code == 200
        assert stage.cluster.encodes == {"a": 2}


async def test_a_replica_that_leaves_takes_only_its_own_items(start: Start) -> None:
    async with start((*SPLIT, "encode")) as stage:
        for i in range(12):
            await stage.chat(f"image:{i}")
        assert sum(stage.cluster.encodes.values()) == 12
        leaving = max(stage.of("encode"), key=lambda r: r.served["encode"])
        had = leaving.served["encode"]
        await stage.remove(leaving)
        await stage.ready()
        for i in range(12):
            assert (await stage.chat(f"image:{i}")).status_code == 200
        assert sum(stage.cluster.encodes.values()) == 12 + had


async def test_a_failed_encode_is_tried_elsewhere_for_everybody(start: Start) -> None:
    async with start(SPLIT) as stage:
        first = [Unavailable("gone")]
        for replica in stage.of("encode"):
            replica.fail = lambda _name: first.pop() if first else None
        answers = await asyncio.gather(*(stage.chat("image:a", f"{i}") for i in range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert stage.cluster.encodes == {"a": 1}


async def test_what_a_store_tells_of_is_used_although_the_home_forgot(start: Start) -> None:
    """Another coordinator had the item encoded, away from its home, and that was long ago."""
    async with start((*SPLIT, "encode", "encode")) as stage:
        picture = "a"
        members = stage.server.pool.members("encode")
        [elsewhere, *_] = [m for m in members if m is not home(members, picture)]
        [holder] = [r for r in stage.of("encode") if r.replica.id == elsewhere.id]
        stage.cluster.embeddings.add(holder._key("", picture))
        holder.notices.put_nowait(Holdings([HeldItem(picture)], whole=True))
        await eventually(lambda: len(stage.server._directory) == 1)
        assert (await stage.chat(f"image:{picture}")).status_code == 200
        assert calls(stage) == 0
        assert not stage.cluster.encodes
        await stage.idle()


async def test_an_item_that_a_store_says_is_gone_is_asked_for_at_home(start: Start) -> None:
    async with start(SPLIT) as stage:
        [one, two] = stage.of("encode")
        one.notices.put_nowait(Holdings([HeldItem("a"), HeldItem("b")], whole=True))
        one.notices.put_nowait(Holdings(evicted=[HeldItem("a")]))
        await eventually(lambda: len(stage.server._directory) == 1)
        assert (await stage.chat("image:a")).status_code == 200
        assert one.served["reserve"] + two.served["reserve"] == 1
        assert stage.cluster.encodes == {"a": 1}
