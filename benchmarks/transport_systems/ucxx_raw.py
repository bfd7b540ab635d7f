"""UCXX with asyncio: a request of eight bytes, the item back by tag, an endpoint per flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import ucxx

from benchmarks.transport_systems.base import BYTE, Settings, async_rounds, run, until_told


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    source = np.full(settings.largest, BYTE, np.uint8)

    async def answer(endpoint: Any) -> None:
        request = np.zeros(1, np.int64)
        while True:
            await endpoint.recv(request)
            if not request[0]:
                return
            await endpoint.send(source[: request[0]])

    async def main() -> None:
        listener = ucxx.create_listener(answer)
        listening(listener.port)
        await asyncio.to_thread(until_told)

    asyncio.run(main())


def measure(settings: Settings) -> list[list[float]]:
    target = np.zeros(settings.span, np.uint8)

    async def main() -> list[list[float]]:
        flows = [
            await ucxx.create_endpoint("127.0.0.1", settings.address) for _ in range(settings.most)
        ]

        async def fetch(index: int, size: int) -> None:
            await flows[index].send(np.array([size], np.int64))
            await flows[index].recv(target[index * size : (index + 1) * size])

        async def move(size: int, many: int) -> None:
            await asyncio.gather(*(fetch(index, size) for index in range(many)))

        results = [
            await async_rounds(settings, lambda s=size, m=many: move(s, m))
            for size, many in settings.cases
        ]
        for flow in flows:
            await flow.send(np.zeros(1, np.int64))
        return results

    results = asyncio.run(main())
    assert target[0] == BYTE
    return results


if __name__ == "__main__":
    run(serve, measure)
