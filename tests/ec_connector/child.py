"""A connector in a process of its own, driven by JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import TransferError, TriptychError, to_wire
from protocol.transfer import EcItem


def content(seed: int, nbytes: int) -> bytes:
    """Bytes that differ for each seed."""
    block = hashlib.sha512(seed.to_bytes(8, "big")).digest() * 1024
    return (block * (nbytes // len(block) + 1))[:nbytes]


class Commands:
    """What a test can have the process do."""

    def __init__(self, connector: EcConnector) -> None:
        self.connector = connector
        self.held = contextlib.AsyncExitStack()

    async def publish(self, seed: int, nbytes: int, **more: Any) -> Any:
        item = await self.connector.publish(
            f"hash-{seed}", content(seed, nbytes), shape=(nbytes,), dtype="uint8", **more
        )
        return msgspec.to_builtins(item)

    async def expect(self, seed: int, nbytes: int, **more: Any) -> Any:
        return msgspec.to_builtins(
            self.connector.expect(f"hash-{seed}", shape=(nbytes,), dtype="uint8", **more)
        )

    async def fetch(self, item: Any, timeout_s: float = 10.0) -> str:
        async with self.connector.fetch(
            msgspec.convert(item, EcItem), Deadline.after(timeout_s)
        ) as fetched:
            return hashlib.sha256(fetched.data).hexdigest()

    async def hold(self, item: Any) -> str:
        fetched = await self.held.enter_async_context(
            self.connector.fetch(msgspec.convert(item, EcItem), Deadline.after(10))
        )
        return hashlib.sha256(fetched.data).hexdigest()

    async def let_go(self) -> None:
        """Leave the contexts that `hold` entered; raises what they raise."""
        await self.held.aclose()

    async def publish_rashly(self, first: int, count: int, nbytes: int, **more: Any) -> Any:
        """Publish all at once, some of them broken off; items by seed, and how it went."""
        chance = random.Random(first)
        counts = {"done": 0, "aborted": 0, "refused": 0}
        done = []

        async def one(seed: int) -> None:
            limit = chance.uniform(0, 0.003) if chance.random() < 0.2 else 30
            try:
                async with asyncio.timeout(limit):
                    done.append((seed, await self.publish(seed, nbytes, **more)))
                counts["done"] += 1
            except TimeoutError:
                counts["aborted"] += 1
            except TransferError as error:
                if error.kind != "store_full":
                    raise
                counts["refused"] += 1

        for start in range(first, first + count, 5):
            await asyncio.gather(*(one(seed) for seed in range(start, start + 5)))
        return done, counts

    async def fetch_often(self, item: Any, times: int) -> None:
        for _ in range(times):
            await self.fetch(item)

    async def retire(self, keys: list[str]) -> None:
        self.connector.retire(keys)

    async def stats(self) -> Any:
        return msgspec.to_builtins(self.connector.stats())

    async def transports(self) -> Any:
        return [self.connector.transports, self.connector.unavailable]


async def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=EcConfig)
    connector = EcConnector(config, sys.argv[2])
    await connector.start()
    commands = Commands(connector)
    running: set[asyncio.Task[None]] = set()

    async def answer(line: str) -> None:
        number, name, arguments = json.loads(line)
        try:
            reply = [number, await getattr(commands, name)(**arguments), None]
        except TriptychError as error:
            reply = [number, None, msgspec.to_builtins(to_wire(error))]
        print("@" + json.dumps(reply), flush=True)

    print("@" + json.dumps(["ready", connector.port, connector.epoch]), flush=True)
    async for line in lines():
        task = asyncio.create_task(answer(line))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    await commands.held.aclose()
    await connector.stop()


async def lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield line.decode()


if __name__ == "__main__":
    asyncio.run(main())
