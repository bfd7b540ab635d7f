"""Where the time of a small fetch goes: both ends of our connector on one loop, under cProfile.

    python -m benchmarks.transport_profile [--transport NAME] [--bytes N] [--rounds N] [--sort KEY]

With both ends in one process no time is spent waking the other one, so what is shown is the work
itself: first the fetches without a profiler, then the functions under it, which slows them all.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import time

from benchmarks.transport_systems.base import BYTE
from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.transfer import EcItem

_MARGIN = 2**20
_WARM_UP = 50
_SHOWN = 40


async def profile(transport: str, nbytes: int, rounds: int, sort: str) -> None:
    """Print the times of fetches, then the profile of as many."""
    config = EcConfig(
        cluster_token="benchmark",
        transports=(transport,),
        capacity_bytes=2 * nbytes + _MARGIN,
        lease_s=600.0,
    )
    producer, consumer = EcConnector(config, "profile"), EcConnector(config, "profile")
    await producer.start()
    await consumer.start()
    try:
        producer.prefault()
        consumer.prefault()
        item = await producer.publish(
            "item", bytes([BYTE]) * nbytes, shape=(nbytes,), dtype="uint8"
        )
        await _fetch(consumer, item, _WARM_UP)
        seconds = sorted(await _fetch(consumer, item, rounds))
        print(
            f"{transport}, {nbytes} bytes: median {statistics.median(seconds) * 1e6:.0f} us, "
            f"fastest tenth {seconds[rounds // 10] * 1e6:.0f} us"
        )
        profiler = cProfile.Profile()
        profiler.enable()
        await _fetch(consumer, item, rounds)
        profiler.disable()
        pstats.Stats(profiler).sort_stats(sort).print_stats(_SHOWN)
    finally:
        await consumer.stop()
        await producer.stop()


async def _fetch(consumer: EcConnector, item: EcItem, rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        async with consumer.fetch(item, Deadline.after(60)) as got:
            assert got.data[-1] == BYTE
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--bytes", type=int, default=64 * 1024)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sort", default="tottime", help="tottime or cumtime")
    arguments = parser.parse_args()
    asyncio.run(profile(arguments.transport, arguments.bytes, arguments.rounds, arguments.sort))


if __name__ == "__main__":
    main()
