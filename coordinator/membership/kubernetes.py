"""Membership from Kubernetes: pods behind the Services of the stages, each asked who it is.

EndpointSlices say which pods are ready; a pod's own `DESCRIBE` says what it is. A pod that
terminates or stops being ready gets no new work at once; calls that run on it go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from coordinator.membership.base import Snapshot
from coordinator.membership.endpoint_slices import Endpoint, EndpointSlices
from protocol.deadline import Deadline
from protocol.errors import TriptychError
from protocol.replica import Replica
from protocol.rpc import DESCRIBE, Empty
from serving.rpc_client import RpcChannel

_ASK_S = 2.0


class KubernetesMembership:
    """Follows EndpointSlices and describes what is behind them.

    Args:
        slices: where the endpoints come from.
        token: the cluster token.
        retry_s: how soon an endpoint that did not answer is asked again.
        recheck_s: how often a known one is asked again, so that a process that was restarted
            within its pod comes back under its new id.
    """

    def __init__(
        self,
        slices: EndpointSlices,
        token: str,
        *,
        retry_s: float = 0.25,
        recheck_s: float = 5.0,
    ) -> None:
        self._slices = slices
        self._token = token
        self._retry_s = retry_s
        self._recheck_s = recheck_s

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """As `Membership.snapshots`."""
        changed = asyncio.Event()
        peers: dict[Endpoint, _Peer] = {}
        follower = asyncio.create_task(self._follow(peers, changed))
        follower.add_done_callback(lambda _task: changed.set())
        last: Snapshot | None = None
        try:
            while True:
                await changed.wait()
                changed.clear()
                if follower.done():
                    follower.result()
                current = _snapshot(peers)
                if current != last:
                    last = current
                    yield current
        finally:
            follower.cancel()
            await asyncio.gather(
                follower, *(peer.stop() for peer in peers.values()), return_exceptions=True
            )

    async def _follow(self, peers: dict[Endpoint, _Peer], changed: asyncio.Event) -> None:
        async with contextlib.aclosing(self._slices.follow()) as views:
            async for wanted in views:
                leaving = [peers.pop(endpoint) for endpoint in peers.keys() - wanted]
                for endpoint in sorted(wanted - peers.keys()):
                    peers[endpoint] = _Peer(
                        endpoint.address, self._token, self._retry_s, self._recheck_s, changed.set
                    )
                changed.set()
                await asyncio.gather(*(peer.stop() for peer in leaving))


class _Peer:
    """One endpoint: its connection, and what it last said that it is."""

    def __init__(
        self,
        address: str,
        token: str,
        retry_s: float,
        recheck_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self.replica: Replica | None = None
        self._channel = RpcChannel(address, token)
        self._retry_s = retry_s
        self._recheck_s = recheck_s
        self._on_change = on_change
        self._task = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Ask no more and close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _ask(self) -> None:
        while True:
            try:
                found = await self._channel.call(DESCRIBE, Empty(), Deadline.after(_ASK_S))
            except TriptychError:
                # Ready says Kubernetes, silent says the network: whether a known one still lives
                # is its status stream's business.
                await asyncio.sleep(self._retry_s)
                continue
            if found != self.replica:
                self.replica = found
                self._on_change()
            await asyncio.sleep(self._recheck_s)


def _snapshot(peers: dict[Endpoint, _Peer]) -> Snapshot:
    """Who answered, once each: a pod with two address families has two endpoints."""
    known: dict[str, Replica] = {}
    for endpoint in sorted(peers):
        replica = peers[endpoint].replica
        if replica is not None:
            known.setdefault(replica.id, replica)
    return tuple(known.values())
