"""What Serve's routers see reaches the membership."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from deploy import feed
from protocol.replica import Replica


async def test_descriptions_become_replicas_in_another_thread() -> None:
    encode = Replica(id="e1", role="encode", grpc="127.0.0.1:1", max_model_len=8)
    snapshots = feed.membership.snapshots()
    await anext(snapshots)
    thread = threading.Thread(target=feed.publish, args=("encode", [msgspec.to_builtins(encode)]))
    thread.start()
    async with asyncio.timeout(5):
        assert await anext(snapshots) == (encode,)
    thread.join()
    feed.publish("encode", [])
    async with asyncio.timeout(5):
        assert await anext(snapshots) == ()
    await snapshots.aclose()


async def test_a_description_that_is_not_understood_is_left_out() -> None:
    good = Replica(id="d1", role="decode")
    feed.publish("decode", [{"role": "decode"}, None, msgspec.to_builtins(good)])
    snapshots = feed.membership.snapshots()
    assert await anext(snapshots) == (good,)
    feed.publish("decode", [])
    await snapshots.aclose()
