"""The sessions of this process with the producers that it reads from, one per address."""

from __future__ import annotations

import asyncio
import time

from ec_connector.peer import Peer
from ec_connector.transports.base import Context
from protocol.deadline import Deadline
from protocol.errors import TransferError
from protocol.transfer import EcItem

_IDLE_PEER_S = 300.0


class Peers:
    """Connects when needed and forgets sessions that nobody has used for long."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: dict[tuple[str, int], Peer] = {}
        self._connecting: dict[tuple[str, int], asyncio.Lock] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def get(self, item: EcItem, deadline: Deadline) -> Peer:
        """The open session with the item's holder, connected if need be.

        Raises:
            TransferError: `peer_unreachable`, `incompatible`; `expired`: it has restarted.
        """
        address = (item.peer_host, item.peer_port)
        peer = self._open.get(address)
        if peer is None or not peer.is_open:
            async with self._connecting.setdefault(address, asyncio.Lock()):
                peer = self._open.get(address)
                if peer is None or not peer.is_open:
                    peer = await self._connect(address, deadline)
        if item.epoch and peer.info.epoch != item.epoch:
            raise TransferError("its holder has restarted", "expired")
        return peer

    async def close(self) -> None:
        """End all sessions."""
        peers, self._open = list(self._open.values()), {}
        for peer in peers:
            await peer.close()

    async def _connect(self, address: tuple[str, int], deadline: Deadline) -> Peer:
        await self._forget_idle()
        old = self._open.pop(address, None)
        if old is not None:
            await old.close()
        peer = await Peer.connect(address, self._context, deadline)
        self._open[address] = peer
        return peer

    async def _forget_idle(self) -> None:
        before = time.monotonic() - _IDLE_PEER_S
        for address, peer in list(self._open.items()):
            if peer.is_idle and peer.used_at < before:
                del self._open[address]
                self._connecting.pop(address, None)
                await peer.close()
