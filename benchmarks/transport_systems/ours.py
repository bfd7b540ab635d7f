"""Our connector over one transport, the whole public path: acquire, move, release."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.transport_systems.base import BYTE, Settings, async_rounds, run, until_told
from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.transfer import EcItem

TRANSPORT = os.environ.get("BENCH_TRANSPORT", "tcp")
_MARGIN = 2**20


def _connector(capacity: int) -> EcConnector:
    config = EcConfig(
        cluster_token="benchmark",
        transports=(TRANSPORT,),
        capacity_bytes=capacity + _MARGIN,
        lease_s=600.0,
    )
    return EcConnector(config, "benchmark")


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    sizes = sorted({size for size, _ in settings.cases})

    async def main() -> None:
        connector = _connector(sum(sizes))
        await connector.start()
        items = {}
        for size in sizes:
            item = await connector.publish(
                f"item-{size}", bytes([BYTE]) * size, shape=(size,), dtype="uint8"
            )
            items[size] = msgspec.to_builtins(item)
        listening(items)
        await asyncio.to_thread(until_told)
        await connector.stop()

    asyncio.run(main())


def measure(settings: Settings) -> list[list[float]]:
    items = {int(size): msgspec.convert(i, EcItem) for size, i in settings.address.items()}

    async def main() -> list[list[float]]:
        connector = _connector(settings.span)
        await connector.start()
        connector.prefault()

        async def fetch(size: int) -> None:
            async with connector.fetch(items[size], Deadline.after(60)) as got:
                assert got.data[-1] == BYTE

        async def move(size: int, many: int) -> None:
            if many == 1:
                await fetch(size)
            else:
                await asyncio.gather(*(fetch(size) for _ in range(many)))

        results = [
            await async_rounds(settings, lambda s=size, m=many: move(s, m))
            for size, many in settings.cases
        ]
        await connector.stop()
        return results

    return asyncio.run(main())


if __name__ == "__main__":
    run(serve, measure)
