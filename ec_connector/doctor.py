"""Examining the way to a peer: which transports reach it, how fast, and why the others do not."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from ec_connector.config import EcConfig
from ec_connector.connector import EcConnector
from ec_connector.probe import plain, probe_hash
from ec_connector.transports import known
from protocol.deadline import Deadline
from protocol.errors import TriptychError
from protocol.transfer import EcItem

_SMALL = 4096
_LARGE = 8 * 2**20
_REPEATS = 7
_CAPACITY = 4 * _LARGE
_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One transport towards the peer.

    Attributes:
        first_s: the first small read, connections included.
        latency_s: a small read, the best of several.
        bytes_per_s: of a read of 8 MiB, the best of several.
        in_place: nothing moves: this side reads the peer's memory where it is.
        reason: why it does not work, "" where it does.
    """

    transport: str
    first_s: float = 0.0
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    in_place: bool = False
    reason: str = ""

    @property
    def works(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was found out about a peer, the fastest transport first."""

    host: str
    port: int
    findings: tuple[Finding, ...]

    @property
    def reachable(self) -> bool:
        return any(finding.works for finding in self.findings)


async def run(host: str, port: int, config: EcConfig) -> Examination:
    """Read probes of the peer over each installed transport, one at a time.

    Args:
        config: of this side; its cluster token must be the peer's. A peer elsewhere reaches us
            under `advertise_host` where a transport needs that.
    """
    findings = [await _examine(name, host, port, config) for name in known()]
    findings.sort(key=lambda finding: (not finding.works, -finding.bytes_per_s))
    return Examination(host, port, tuple(findings))


def show(examination: Examination) -> str:
    """The examination as lines for a terminal."""
    where = f"{examination.host}:{examination.port}"
    reasons = {found.reason for found in examination.findings}
    if not examination.reachable and len(reasons) == 1:  # it is not about the transports
        return f"nothing can be read from {where}: {reasons.pop()}"
    lines = [where]
    for found in examination.findings:
        if found.works:
            speed = f"{found.bytes_per_s / 2**30:8.2f} GiB/s"
            lines.append(
                f"  {found.transport:<8} {'in place' if found.in_place else speed:>14}  "
                f"latency {found.latency_s * 1e6:7.0f} us  first read {found.first_s * 1e3:7.1f} ms"
            )
        else:
            lines.append(f"  {found.transport:<8} does not work: {found.reason}")
    return "\n".join(lines)


async def _examine(transport: str, host: str, port: int, config: EcConfig) -> Finding:
    settings = msgspec.structs.replace(
        config,
        port=0,
        capacity_bytes=_CAPACITY,
        transports=(transport,),
        allowed_hosts=(host,),
    )
    connector = EcConnector(settings, "doctor")
    try:
        await connector.start()
        first, in_place = await _read(connector, host, port, _SMALL)
        small = [(await _read(connector, host, port, _SMALL))[0] for _ in range(_REPEATS)]
        large = [(await _read(connector, host, port, _LARGE))[0] for _ in range(_REPEATS)]
    except TriptychError as error:
        return Finding(transport, reason=plain(error.message))
    finally:
        await connector.stop()
    return Finding(transport, first, min(small), _LARGE / min(large), in_place)


async def _read(connector: EcConnector, host: str, port: int, nbytes: int) -> tuple[float, bool]:
    """Seconds of a read, and whether the bytes stayed where they were."""
    started = time.perf_counter()
    item = EcItem(mm_hash=probe_hash(nbytes), peer_host=host, peer_port=port)
    async with connector.fetch(item, Deadline.after(_LIMIT_S)) as found:
        return time.perf_counter() - started, found.in_place
