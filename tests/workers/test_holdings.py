"""What an encode replica tells of its store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ec_connector.config import EcConfig
from protocol.deadline import Deadline
from protocol.rpc import ENCODE, HOLDINGS, Empty, EncodeCall, HeldItem, Holdings
from tests.workers.conftest import StartWorker
from tests.workers.prompts import picture
from workers.holdings import HoldingsBoard

WITHIN_S = 10.0


async def told(stream: AsyncIterator[Holdings]) -> Holdings:
    async with asyncio.timeout(WITHIN_S):
        return await anext(stream)


async def test_a_listener_hears_everything_then_changes() -> None:
    board = HoldingsBoard()
    board.published("k1", HeldItem("a"))
    async with contextlib.aclosing(board.watch()) as notices:
        assert await told(notices) == Holdings([HeldItem("a")], whole=True)
        board.published("k2", HeldItem("b", "salt"))
        board.published("k2", HeldItem("b", "salt"))
        board.evicted("k1")
        board.evicted("somebody else's")
        assert await told(notices) == Holdings([HeldItem("b", "salt")], [HeldItem("a")])
    assert len(board) == 1


async def test_what_comes_and_goes_between_two_notices_is_told_as_it_ends() -> None:
    board = HoldingsBoard()
    async with contextlib.aclosing(board.watch()) as notices:
        await told(notices)
        board.published("k1", HeldItem("a"))
        board.evicted("k1")
        board.published("k1", HeldItem("a"))
        assert await told(notices) == Holdings([HeldItem("a")])


async def test_a_listener_that_does_not_keep_up_hears_everything_again() -> None:
    board = HoldingsBoard()
    async with contextlib.aclosing(board.watch()) as notices:
        await told(notices)
        for number in range(5000):
            board.published(str(number), HeldItem(str(number)))
        board.evicted("7")
        everything = await told(notices)
        assert everything.whole
        assert len(everything.held) == 4999
        assert HeldItem("7") not in everything.held


async def test_publishing_and_evicting_is_told_over_grpc(start_worker: StartWorker) -> None:
    """There is not room for three of these embeddings: the first goes."""
    worker = await start_worker("encode", ec=EcConfig(capacity_bytes=4096, threads=2, lease_s=0.01))
    shown = [picture(seed) for seed in range(3)]
    stream = worker.channel.stream(HOLDINGS, Empty(), Deadline.after(WITHIN_S))
    async with contextlib.aclosing(stream) as notices:
        assert await told(notices) == Holdings(whole=True)
        held: set[HeldItem] = set()
        for one in shown:
            call = EncodeCall("r", [one.encode_item()], "salt", lease_s=0.01)
            await worker.channel.call(ENCODE, call, Deadline.after(WITHIN_S))
            while HeldItem(one.mm_hash, "salt") not in held:
                notice = await told(notices)
                held = (held | set(notice.held)) - set(notice.evicted)
        assert HeldItem(shown[0].mm_hash, "salt") not in held
        assert HeldItem(shown[2].mm_hash, "salt") in held
