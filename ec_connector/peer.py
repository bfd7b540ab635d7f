"""The consumer's end of the exchange: one connection to one producer."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass

import msgspec

from ec_connector.framing import FrameProtocol
from ec_connector.handshake import ConsumerHandshake
from ec_connector.messages import (
    Cancel,
    Capabilities,
    Failed,
    Granted,
    Read,
    Release,
    Renew,
    Renewed,
    Welcome,
    from_producer,
    pack,
)
from ec_connector.server import PURPOSE
from ec_connector.transports.base import Context, Link, PeerInfo, Transport
from protocol.deadline import Deadline
from protocol.errors import TransferError, from_wire
from protocol.transfer import EcItem

_ANSWER_MARGIN_S = 0.2
"""A producer answers this long before the deadline that it is waiting for an encode under."""

_CONFIRM_S = 5.0

_MOST_INLINE = 128
"""Reads under way beyond which bytes are not asked for in answers: those of a slow reader pile up
at the producer."""

_RETRY_AFTER_S = 30.0
"""A transport that failed is left alone for this long, for that peer."""


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease that this process holds at a peer.

    Attributes:
        until: monotonic time to which it certainly lasts: counted from before it was asked for,
            so never later than the producer's own idea of it.
    """

    id: bytes
    until: float
    lease_s: float
    lost: bool = False


@dataclass(slots=True, eq=False)
class Renewal:
    """A question whether leases still exist, on its way."""

    asked_at: float
    leases: list[HeldLease]
    settled: asyncio.Future[None]

    def settle(self, kept: tuple[bytes, ...]) -> None:
        """Take the answer in."""
        for lease in self.leases:
            if lease.id in kept:
                lease.until = self.asked_at + lease.lease_s
            else:
                lease.lost = True
        if not self.settled.done():
            self.settled.set_result(None)


class Peer(FrameProtocol):
    """A session with one producer; made anew after the connection has ended."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._handshake = ConsumerHandshake(context.secret, PURPOSE, context.fingerprint)
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._ids = itertools.count(1)
        self._reads: dict[int, asyncio.Future[Granted]] = {}
        self._renewals: dict[int, Renewal] = {}
        self._leases: dict[bytes, HeldLease] = {}
        self._done: list[bytes] = []
        self._aborted: list[bytes] = []
        self._renewing: asyncio.TimerHandle | None = None
        self._links: dict[str, Link] = {}
        self._linking = asyncio.Lock()
        self._dropped: dict[str, float] = {}
        self.capabilities: dict[str, bytes] = {}
        self.info = PeerInfo("", 0, "", "")
        self.used_at = time.monotonic()

    @classmethod
    async def connect(
        cls,
        address: tuple[str, int],
        context: Context,
        deadline: Deadline,
    ) -> Peer:
        """Reach a producer and prove ourselves.

        Raises:
            TransferError: `peer_unreachable`; `incompatible` (another token or version).
        """
        host, port = address
        limit = min(context.config.connect_timeout_s, deadline.remaining("transfer"))
        peer = cls(context)
        tls = context.encryption
        try:
            async with asyncio.timeout(limit):
                await asyncio.get_running_loop().create_connection(
                    lambda: peer,
                    host,
                    port,
                    ssl=tls.consumer if tls else None,
                    server_hostname="" if tls else None,
                )
                peer.send_packed(peer._handshake.hello)
                welcome = await peer._welcome
        except BaseException as error:
            peer.fail()
            if isinstance(error, TimeoutError):
                raise _unreachable(address, f"no answer within {limit:.1f} s") from None
            if isinstance(error, OSError):
                raise _unreachable(address, _said(error)) from None
            raise
        peer.capabilities = welcome.transports
        handshake = peer._handshake
        peer.info = PeerInfo(host, port, handshake.epoch, handshake.peer_fingerprint)
        peer.authenticated()
        return peer

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        return not self._leases and not self._reads

    # ---- leases

    def takes_inline(self, item: EcItem, transport: Transport) -> bool:
        """Whether an item is so small that its bytes shall be in the answer."""
        return 0 < item.nbytes <= transport.inlines and len(self._reads) < _MOST_INLINE

    async def read(
        self, item: EcItem, transport: str, route: bytes, deadline: Deadline, *, inline: bool
    ) -> tuple[Granted, HeldLease]:
        """Acquire a lease; waits while the item is being encoded.

        Raises:
            TransferError: what the producer answered, or `peer_unreachable`.
        """
        left = deadline.remaining("transfer")
        read_id = next(self._ids)
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._reads[read_id] = future
        self.used_at = asked_at = time.monotonic()
        wait_s = left - min(_ANSWER_MARGIN_S, left / 4)
        read = Read(
            read_id, item.key, item.mm_hash, item.epoch, item.expires_at,
            wait_s, transport, route, inline,
        )  # fmt: skip
        self.send_packed(self._take_releases() + pack(read))  # one packet, one wake-up
        # A timer of the future's costs a third of `asyncio.timeout`.
        timer = asyncio.get_running_loop().call_later(left, _time_out, future)
        try:
            if not self.is_open:
                raise _unreachable((self.info.host, self.info.port), "the connection ended")
            granted = await future
        except TimeoutError:
            # It answers even while an encode is under way: silence means that it is stuck.
            self.fail()
            raise _unreachable((self.info.host, self.info.port), "it does not answer") from None
        except asyncio.CancelledError:
            self.send(Cancel(read_id))
            raise
        finally:
            timer.cancel()
            self._reads.pop(read_id, None)
        lease = HeldLease(granted.lease, asked_at + granted.lease_s, granted.lease_s)
        self._leases[lease.id] = lease
        self._renew_later(granted.lease_s / 3)
        return granted, lease

    async def confirm(self, lease: HeldLease) -> bool:
        """Whether the lease has lasted until now, so that what was read under it is right.

        By the clock where that is enough, else by asking: a lease that still exists at the
        producer has never lapsed.
        """
        if not lease.lost and time.monotonic() >= lease.until and self.is_open:
            renewal = self._ask_renewal([lease])
            await asyncio.wait((renewal.settled,), timeout=_CONFIRM_S)
        return not lease.lost and time.monotonic() < lease.until

    def release(self, lease: HeldLease, *, done: bool) -> None:
        """Give a lease back; sent with others at the end of this turn of the loop."""
        if self._leases.pop(lease.id, None) is None:
            return
        if not self._done and not self._aborted:
            asyncio.get_running_loop().call_soon(self._flush)
        (self._done if done else self._aborted).append(lease.id)

    # ---- transports

    def usable(self, transports: dict[str, Transport], item: EcItem) -> list[Transport]:
        """What both sides have for this item, best first."""
        now = time.monotonic()
        return [
            transport
            for name, transport in transports.items()
            if name in self.capabilities
            and (not item.transports or name in item.transports)
            and self._dropped.get(name, 0.0) <= now
        ]

    async def link(self, transport: Transport, deadline: Deadline) -> Link:
        """The link of a transport to this peer, made on first use.

        Raises:
            TransferError: `transport_failed`.
        """
        link = self._links.get(transport.name)
        if link is None:
            async with self._linking:
                link = self._links.get(transport.name)
                if link is None:
                    capability = self.capabilities[transport.name]
                    link = await transport.link(self.info, capability, deadline)
                    self._links[transport.name] = link
        return link

    async def drop(self, transport: Transport) -> None:
        """Do not use a transport that failed for a while."""
        self._dropped[transport.name] = time.monotonic() + _RETRY_AFTER_S
        link = self._links.pop(transport.name, None)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        """End the session and its links."""
        self._flush()
        self.close_after_writing()
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    # ---- frames

    def frame_received(self, body: memoryview) -> None:
        if not self._welcome.done():
            self._greeted(body)
            return
        try:
            frame = from_producer.decode(body)
        except msgspec.DecodeError:
            self.fail()
            return
        match frame:
            case Granted() | Failed():
                self._answered(frame)
            case Renewed():
                renewal = self._renewals.pop(frame.id, None)
                if renewal is not None:
                    renewal.settle(frame.leases)
            case Capabilities():
                self._update(frame.transports)

    def _greeted(self, body: memoryview) -> None:
        try:
            answer = self._handshake.receive(body)
        except TransferError as error:
            self._welcome.set_exception(error)
            return
        if isinstance(answer, bytes):
            self.send_packed(answer)
        else:
            self._welcome.set_result(answer)

    def closed(self, reason: str) -> None:
        error = _unreachable((self.info.host, self.info.port), f"the connection {reason}")
        if not self._welcome.done():
            self._welcome.set_exception(error)
            self._welcome.exception()
        for future in self._reads.values():
            if not future.done():
                future.set_exception(error)
        for lease in self._leases.values():
            lease.lost = True  # the producer frees them when it sees the connection end
        for renewal in self._renewals.values():
            renewal.settle(())
        self._renewals.clear()
        if self._renewing is not None:
            self._renewing.cancel()

    def _update(self, capabilities: dict[str, bytes]) -> None:
        self.capabilities = capabilities
        for name, link in self._links.items():
            if name in capabilities:
                link.update(capabilities[name])

    def _answered(self, frame: Granted | Failed) -> None:
        future = self._reads.get(frame.id)
        if future is None or future.done():
            return  # it was cancelled: the Cancel that is on its way ends the lease
        if isinstance(frame, Granted):
            future.set_result(frame)
        else:
            future.set_exception(from_wire(frame.error))

    def _flush(self) -> None:
        packed = self._take_releases()
        if packed:
            self.send_packed(packed)

    def _take_releases(self) -> bytes:
        """The frame of what was released and not told yet, empty where there is nothing."""
        if not self._done and not self._aborted:
            return b""
        done, self._done = tuple(self._done), []
        aborted, self._aborted = tuple(self._aborted), []
        return pack(Release(done, aborted))

    def _renew_later(self, delay: float) -> None:
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().call_later(delay, self._renew)

    def _renew(self) -> None:
        self._renewing = None
        if self._leases and self.is_open:
            self._ask_renewal(list(self._leases.values()))
            self._renew_later(min(lease.lease_s for lease in self._leases.values()) / 3)

    def _ask_renewal(self, leases: list[HeldLease]) -> Renewal:
        renewal_id = next(self._ids)
        renewal = Renewal(time.monotonic(), leases, asyncio.get_running_loop().create_future())
        self._renewals[renewal_id] = renewal
        self.send(Renew(renewal_id, tuple(lease.id for lease in leases)))
        return renewal


def _time_out(future: asyncio.Future[Granted]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _said(error: OSError) -> str:
    """What the system says, without the address that the library repeats."""
    if error.errno is not None and error.errno > 0:  # those of name resolution are negative
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)


def _unreachable(address: tuple[str, int], why: str) -> TransferError:
    return TransferError(f"peer {address[0]}:{address[1]}: {why}", "peer_unreachable")
