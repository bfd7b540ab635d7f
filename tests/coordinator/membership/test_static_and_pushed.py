"""Membership from a list of addresses, and from another thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from coordinator.membership.pushed import PushedMembership
from coordinator.membership.static import StaticMembership, foreign
from protocol.errors import InvalidRequest
from protocol.replica import Replica
from tests.coordinator.stub_stages import Cluster, StubReplica


async def test_addresses_are_asked_who_they_are_until_they_answer() -> None:
    one, late = StubReplica("encode", Cluster()), StubReplica("decode", Cluster())
    first = await one.start()
    second = await late.start()
    await late.stop()
    membership = StaticMembership(
        [first.grpc, second.grpc, "prefill=http://127.0.0.1:9/"], "", period_s=0.05
    )
    async with contextlib.aclosing(membership.snapshots()) as snapshots:
        known = await anext(snapshots)
        assert [r.id for r in known] == [first.id, "prefill=http://127.0.0.1:9/"]
        await one.stop()
        known = await anext(snapshots)
        assert [r.id for r in known] == ["prefill=http://127.0.0.1:9/"]


async def test_one_that_is_slow_to_answer_stays() -> None:
    one, other = StubReplica("encode", Cluster()), StubReplica("decode", Cluster())
    first, second = await one.start(), await other.start()
    membership = StaticMembership([first.grpc, second.grpc], "", period_s=0.05, answer_s=0.3)
    async with contextlib.aclosing(membership.snapshots()) as snapshots:
        assert len(await anext(snapshots)) == 2
        one.hang = True
        await other.stop()
        assert [r.id for r in await anext(snapshots)] == [first.id]
        await one.stop()
        assert await anext(snapshots) == ()


def test_foreign_servers_are_named_with_their_role() -> None:
    one = foreign("prefill_decode=http://h:1/")
    assert (one.role, one.http, one.engine) == ("prefill_decode", "http://h:1", "vllm")
    with pytest.raises(InvalidRequest):
        foreign("chef=http://h:1")


async def test_what_another_thread_publishes_arrives_merged_by_role() -> None:
    membership = PushedMembership()
    membership.publish("encode", [Replica("e1", "encode")])
    async with contextlib.aclosing(membership.snapshots()) as snapshots:
        assert [r.id for r in await anext(snapshots)] == ["e1"]

        def publish() -> None:
            membership.publish("decode", [Replica("d1", "decode")])
            membership.publish("encode", [Replica("e2", "encode")])

        thread = threading.Thread(target=publish)
        thread.start()
        await asyncio.to_thread(thread.join)
        known = await anext(snapshots)
        assert {r.id for r in known} == {"d1", "e2"}
    membership.publish("encode", [])  # nobody listens any more
