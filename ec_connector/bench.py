"""Measuring one transport to a peer over sizes and numbers of reads in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from ec_connector.probe import plain, probe_hash
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.transfer import EcItem

SIZES = (65536, 2**20, 16 * 2**20, 64 * 2**20)
IN_FLIGHT = (1, 8)
_LIMIT_S = 60.0
_MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rounds of `in_flight` reads of `nbytes` at once: the median round.

    `in_place`: nothing moved, the bytes were read where the peer has them.
    """

    nbytes: int
    in_flight: int
    seconds: float
    rounds: int
    in_place: bool

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes * self.in_flight / self.seconds


async def run(
    host: str,
    port: int,
    config: EcConfig,
    *,
    sizes: Sequence[int] = SIZES,
    in_flight: Sequence[int] = IN_FLIGHT,
    seconds: float = 1.0,
) -> tuple[Measurement, ...]:
    """Read probes of a peer with the transports of `config`.

    Args:
        sizes: bytes; at most half of the peer's store.
        seconds: how long each case is repeated.

    Raises:
        InvalidRequest: a transport that cannot be used here.
        TransferError: what a read met with, for example `store_full` at the peer.
    """
    span = max(sizes) * max(in_flight)
    settings = msgspec.structs.replace(
        config, port=0, capacity_bytes=span + 2**20, allowed_hosts=(host,)
    )
    connector = EcConnector(settings, "bench")
    await connector.start()
    try:
        connector.prefault()
        return tuple(
            [
                await _measure(connector, host, port, nbytes, many, seconds)
                for many in in_flight
                for nbytes in sizes
            ]
        )
    except TransferError as error:
        raise TransferError(plain(error.message), error.args[1]) from None
    finally:
        await connector.stop()


def show(measurements: Sequence[Measurement]) -> str:
    """The measurements as lines for a terminal."""
    lines = ["     size  in flight       time   throughput"]
    for found in measurements:
        speed = "in place" if found.in_place else f"{found.bytes_per_s / 2**30:.2f} GiB/s"
        lines.append(
            f"{found.nbytes / 2**20:6.2f} MiB  {found.in_flight:>9}  {found.seconds * 1e3:7.2f} ms"
            f"  {speed:>11}"
        )
    return "\n".join(lines)


async def _measure(
    connector: EcConnector, host: str, port: int, nbytes: int, many: int, seconds: float
) -> Measurement:
    item = EcItem(mm_hash=probe_hash(nbytes), peer_host=host, peer_port=port)

    async def fetch() -> bool:
        async with connector.fetch(item, Deadline.after(_LIMIT_S)) as found:
            return found.in_place

    async def move() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(fetch() for _ in range(many)))
        return time.perf_counter() - started

    in_place = await fetch()
    await move()
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < _MIN_ROUNDS:
        rounds.append(await move())
    return Measurement(nbytes, many, statistics.median(rounds), len(rounds), in_place)
