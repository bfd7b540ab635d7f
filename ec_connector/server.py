"""The producer's end of the exchange: one session per consumer's connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from ec_connector import probe
from ec_connector.config import EcConfig
from ec_connector.encryption import Encryption
from ec_connector.framing import FrameProtocol
from ec_connector.handshake import HANDSHAKE_S, HandshakeFailed, ProducerHandshake, Secret
from ec_connector.holder import STORE_REGION, Ask, Grant, Holder
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
    from_consumer,
)
from ec_connector.regions import Region
from ec_connector.transports.base import Transport
from protocol.errors import InvalidRequest, TransferError, TriptychError, to_wire

PURPOSE = "exchange"

_MAX_READS = 4096
"""Unanswered reads and pushes of one session; a well-behaved consumer has far fewer."""

_log = logging.getLogger(__name__)


class ExchangeServer:
    """Accepts consumers and serves them from the holder through the transports."""

    def __init__(
        self,
        config: EcConfig,
        secret: Secret,
        encryption: Encryption | None,
        holder: Holder,
        regions: Mapping[int, Region],
        transports: Mapping[str, Transport],
    ) -> None:
        self.secret = secret
        self.holder = holder
        self.regions = regions
        self.transports = transports
        self.sessions: set[Session] = set()
        self.session_ids = itertools.count(1)
        self._config = config
        self._encryption = encryption
        self._server: asyncio.Server | None = None
        holder.on_lapse = self._lapse

    async def start(self) -> int:
        """Listen; returns the port.

        Raises:
            InvalidRequest: the address cannot be used.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Session(self),
                self._config.host,
                self._config.port,
                backlog=128,
                ssl=self._encryption.producer if self._encryption else None,
            )
        except OSError as error:
            raise InvalidRequest(
                f"cannot listen on {self._config.host}:{self._config.port}: {error}", "ec.port"
            ) from None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Take no more consumers and end the sessions."""
        if self._server is not None:
            self._server.close()
        pushes = [task for session in self.sessions for task in session.pushes.values()]
        for session in list(self.sessions):
            session.fail()
        for task in pushes:
            task.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def capabilities(self) -> dict[str, bytes]:
        """What the transports tell their links."""
        return {name: transport.capability() for name, transport in self.transports.items()}

    def _lapse(self, lease: bytes) -> None:
        for session in self.sessions:
            session.lapse(lease)

    def announce(self) -> None:
        """Tell all consumers that there is a new region."""
        for session in self.sessions:
            if session.is_open:
                session.send(Capabilities(self.capabilities()))


class Session(FrameProtocol):
    """One consumer. Its leases end with it."""

    def __init__(self, server: ExchangeServer) -> None:
        super().__init__()
        self._server = server
        self._holder = server.holder
        self._id = next(server.session_ids)
        self._handshake = ProducerHandshake(
            server.secret, PURPOSE, server.holder.epoch, server.holder.fingerprint
        )
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._asks: dict[int, Ask] = {}
        self._granted: dict[bytes, tuple[int, Transport]] = {}
        self.is_open = False
        self.pushes: dict[bytes, asyncio.Task[None]] = {}  # by lease

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.sessions.add(self)
        self._handshake_timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.fail)

    def frame_received(self, body: memoryview) -> None:
        if not self.is_open:
            self._greet(body)
            return
        try:
            frame = from_consumer.decode(body)
        except msgspec.DecodeError:
            _log.warning("a consumer sent a malformed frame; its connection is closed")
            self.fail()
            return
        match frame:
            case Read():
                self._read(frame)
            case Release():
                self._release(frame)
            case Renew():
                holder = self._holder
                until = time.monotonic() + holder.lease_s
                kept = holder.leases.renew(self._id, frame.leases, until)
                self.send(Renewed(frame.id, tuple(kept)))
            case Cancel():
                ask = self._asks.pop(frame.id, None)
                if ask is not None:
                    self._holder.cancel(ask)
                for lease, (read_id, _) in list(self._granted.items()):
                    if read_id == frame.id:
                        self._end(lease, done=False)

    def closed(self, reason: str) -> None:
        self._server.sessions.discard(self)
        self.is_open = False
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        for ask in self._asks.values():
            self._holder.cancel(ask)
        self._asks.clear()
        for lease in list(self._granted):
            self.lapse(lease)
        self._holder.end_session(self._id)

    def _greet(self, body: memoryview) -> None:
        try:
            answer = self._handshake.receive(body)
        except HandshakeFailed as error:
            _log.warning("a consumer was refused: %s", error)
            self.send_packed(error.reply)
            self.close_after_writing()
            return
        if answer is not None:
            self.send_packed(answer)
            return
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self.is_open = True
        self.authenticated()
        self.send(Welcome(self._server.capabilities()))

    def _read(self, read: Read) -> None:
        transport = self._server.transports.get(read.transport)
        if transport is None:
            error = TransferError(
                f"transport {read.transport!r} is not offered", "transport_failed", (read.mm_hash,)
            )
            self.send(Failed(read.id, to_wire(error)))
            return
        if len(self._asks) + len(self.pushes) >= _MAX_READS:
            self.fail()
            return
        try:
            probe.prepare(self._holder, self._server.regions[STORE_REGION], read.mm_hash)
        except TransferError as error:
            self.send(Failed(read.id, to_wire(error)))
            return
        ask = Ask(self._id, read.key, read.mm_hash, self._answer(read, transport))
        self._asks[read.id] = ask
        self._holder.acquire(ask, read.epoch, read.expires_at, max(0.0, read.wait_s))

    def _answer(self, read: Read, transport: Transport) -> Callable[[Grant | TriptychError], None]:
        def answer(result: Grant | TriptychError) -> None:
            self._asks.pop(read.id, None)
            if isinstance(result, TriptychError):
                self.send(Failed(read.id, to_wire(result)))
                return
            lease = result.lease.id
            self._granted[lease] = (read.id, transport)
            transport.opened(lease)
            data = None
            if read.inline and result.nbytes <= transport.inlines:
                data = b"".join(self._server.regions[result.region].views(result.spans))
            self.send(
                Granted(
                    read.id,
                    lease,
                    self._holder.lease_s,
                    result.region,
                    result.spans if transport.names_spans else (),
                    result.nbytes,
                    result.shape,
                    result.dtype,
                    result.checksum,
                    data,
                )
            )
            if transport.pushes and not read.inline:
                self._push(read, result, transport)

        return answer

    def _push(self, read: Read, grant: Grant, transport: Transport) -> None:
        """Send the bytes; they stay pinned until the sending has ended, whatever the lease does."""
        lease, target = grant.lease.id, grant.lease.target
        spans = self._server.regions[grant.region].views(grant.spans)
        target.pins += 1

        async def push() -> None:
            try:
                await transport.push(read.route, spans, lease)
            except TransferError as error:
                _log.info("item %s was not sent: %s", read.mm_hash, error.message)
            finally:
                self._holder.unpin(target)
                self.pushes.pop(lease, None)

        self.pushes[lease] = asyncio.create_task(push())

    def _release(self, frame: Release) -> None:
        for lease in frame.done:
            self._end(lease, done=True)
        for lease in frame.aborted:
            self._end(lease, done=False)

    def _end(self, lease: bytes, *, done: bool) -> None:
        if done:
            self._forget(lease)
        else:
            self.lapse(lease)  # a push under way is of no use any more
        self._holder.release(self._id, lease, done=done)

    def lapse(self, lease: bytes) -> None:
        """A lease has ended before its reader was done: stop sending."""
        transport = self._forget(lease)
        if transport is not None and lease in self.pushes:
            transport.lapse(lease)

    def _forget(self, lease: bytes) -> Transport | None:
        granted = self._granted.pop(lease, None)
        if granted is None:
            return None
        granted[1].ended(lease)
        return granted[1]
