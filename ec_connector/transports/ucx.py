"""UCX through UCXX: tagged messages from the producer's region into the consumer's memory.

The consumer's worker address and a random tag travel in the read request, that is, over the
authenticated exchange; the tag is known to the two alone. Each channel has an endpoint of its own
at either end, so that closing it breaks off that read and no other. One thread per process owns
the UCX worker and sleeps on its event descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ec_connector.messages import Granted
from ec_connector.regions import joined
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import failed
from ec_connector.transports.driver import Driver, settle, tell
from ec_connector.transports.hardware import has_rdma
from protocol.deadline import Deadline
from protocol.errors import TransferError

_IDLE_CHANNELS = 8
_LONGEST_SLEEP_MS = 100
"""Some transports of UCX give no event for all that they do."""

_BUSY_SLEEP_MS = 1
_PATIENCE_S = 5.0
"""How long a read that was given up may go on before its endpoint is closed."""

_PIECE_BITS = 24
"""Low bits of a tag count the pieces of one read."""

_log = logging.getLogger(__name__)


class _Capability(msgspec.Struct, frozen=True):
    address: bytes


class _Route(msgspec.Struct, frozen=True, array_like=True):
    """Where to send: the consumer's worker, the channel, and the first tag of this read."""

    address: bytes
    channel: int
    tag: int


@dataclass(slots=True, eq=False)
class _Moving:
    """Messages of one push or one receive that are under way."""

    requests: list[Any]
    done: Callable[[TransferError | None], None]


class Worker(Driver):
    """The UCX worker's thread."""

    def __init__(self) -> None:
        super().__init__("ucx")
        self.address = b""
        self._library: Any = None
        self._worker: Any = None
        self._endpoints: dict[int, Any] = {}
        self._moving: list[_Moving] = []
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)

    async def stop(self) -> None:
        await super().stop()
        if not self._thread.is_alive():
            event, self._event = self._event, -1
            os.close(event)

    async def connect(self, channel: int, address: bytes) -> None:
        """Make the channel's endpoint, to the worker at this address."""

        def work() -> None:
            if channel not in self._endpoints:
                there = self._library.UCXAddress.create_from_buffer(bytearray(address))
                self._endpoints[channel] = self._worker.create_endpoint_from_worker_address(
                    there, True
                )

        await self.do(work)

    def disconnect(self, channel: int) -> None:
        """Close the channel's endpoint; what is under way on it fails."""

        def work() -> None:
            endpoint = self._endpoints.pop(channel, None)
            if endpoint is not None:
                self._shut(endpoint)

        self.post(work)

    def move(
        self, channel: int, tag: int, buffers: Sequence[memoryview], *, send: bool
    ) -> asyncio.Future[None]:
        """Send or receive a message per buffer; the future ends when no buffer is touched more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(_seen)

        def done(error: TransferError | None) -> None:
            tell(loop, settle, future, None, error)

        def command() -> None:
            moving = _Moving([], done)
            try:
                endpoint = self._endpoints[channel]
                make = endpoint.tag_send if send else endpoint.tag_recv
                for index, buffer in enumerate(buffers):
                    array = self._array(buffer)
                    moving.requests.append(make(array, self._library.UCXXTag(tag + index)))
            except Exception as error:  # noqa: BLE001 (the library raises types of its own)
                _log.info("ucx refused a message: %s", error)
                endpoint = self._endpoints.pop(channel, None)
                if endpoint is not None:
                    self._shut(endpoint)
                if not moving.requests:
                    done(failed("ucx", str(error) or "the endpoint is closed"))
                    return
            self._moving.append(moving)

        self.post(command)
        return future

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def _open(self) -> None:
        from ucxx import libucxx

        # The endpoint's methods take nothing else, and the library gives it no public name.
        from ucxx._lib.arr import Array

        self._library, self._array = libucxx, Array
        context = libucxx.UCXContext({})
        self._worker = libucxx.UCXWorker(
            context, enable_delayed_submission=False, enable_python_future=False
        )
        self._worker.init_blocking_progress_mode()
        self._poll.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self.address = self._worker.address.tobytes()

    def _wait(self) -> None:
        if self._worker is None or self._worker.arm():
            limit = _BUSY_SLEEP_MS if self._moving else _LONGEST_SLEEP_MS
            if any(fd == self._event for fd, _ in self._poll.poll(limit)):
                os.eventfd_read(self._event)

    def _advance(self) -> None:
        if self._worker is None:
            return
        self._worker.progress()
        for moving in list(self._moving):
            if all(request.completed for request in moving.requests):
                self._moving.remove(moving)
                moving.done(_fault(moving.requests))

    def _close(self) -> None:
        for endpoint in self._endpoints.values():
            self._shut(endpoint)
        self._endpoints.clear()
        for moving in self._moving:
            moving.done(failed("ucx", "the process ends"))
        self._moving.clear()
        self._worker = None

    def _shut(self, endpoint: Any) -> None:
        with contextlib.suppress(Exception):
            endpoint.close_blocking(period=10**9, max_attempts=1)


class UcxTransport(Transport):
    """Sends to and receives from the UCX workers of peers."""

    name = "ucx"
    pushes = True
    names_spans = True
    stops_at_once = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rank = 30 if has_rdma() else 60
        self.worker = Worker()
        self._pushing: dict[bytes, int] = {}  # channel by lease

    @classmethod
    def unwanted(cls) -> str | None:
        # UCX 1.21 may crash the process when a peer dies while it connects, and a second UCX, that
        # of nixl, may abort it: docs/ec-connector.md. So it is there for those who ask for it.
        return "used only when ec.transports names it"

    async def start(self) -> None:
        await self.worker.start()

    async def stop(self) -> None:
        await self.worker.stop()

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(_Capability(self.worker.address))

    async def push(self, route: bytes, spans: Sequence[memoryview], lease: bytes) -> None:
        try:
            where = msgspec.msgpack.decode(route, type=_Route)
        except msgspec.DecodeError:
            raise failed(self.name, "the route is malformed") from None
        self._pushing[lease] = where.channel
        try:
            await self.worker.connect(where.channel, where.address)
            moving = self.worker.move(where.channel, where.tag, spans, send=True)
            try:
                await asyncio.shield(moving)
            except asyncio.CancelledError:
                self.worker.disconnect(where.channel)
                await asyncio.wait((moving,))
                raise
        except TransferError:
            self.worker.disconnect(where.channel)
            raise
        finally:
            del self._pushing[lease]

    def lapse(self, lease: bytes) -> None:
        channel = self._pushing.get(lease)
        if channel is not None:
            self.worker.disconnect(channel)

    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        return UcxLink(self.worker, msgspec.msgpack.decode(capability, type=_Capability).address)


class UcxLink(Link):
    """Channels to one peer's worker."""

    def __init__(self, worker: Worker, address: bytes) -> None:
        self.worker = worker
        self._address = address
        self._idle: list[int] = []
        self._closed = False

    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        if self._idle:
            channel = self._idle.pop()
        else:
            channel = secrets.randbits(63)
            await self.worker.connect(channel, self._address)
        return UcxChannel(self, channel)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self.worker.disconnect(self._idle.pop())

    def put_back(self, channel: int) -> None:
        """Keep a channel whose read ended well."""
        if self._closed or len(self._idle) >= _IDLE_CHANNELS:
            self.worker.disconnect(channel)
        else:
            self._idle.append(channel)


class UcxChannel(Channel):
    """One read: messages with tags that nobody else knows."""

    def __init__(self, link: UcxLink, channel: int) -> None:
        self._link = link
        self._channel = channel
        self._tag = secrets.randbits(63 - _PIECE_BITS) << _PIECE_BITS
        self._future: asyncio.Future[None] | None = None
        self.route = msgspec.msgpack.encode(_Route(link.worker.address, channel, self._tag))

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        buffers, offset = [], 0
        for _, nbytes in joined(granted.spans):
            buffers.append(into[0][offset : offset + nbytes])
            offset += nbytes
        if len(buffers) >= 1 << _PIECE_BITS or offset != into[0].nbytes:
            raise failed("ucx", "the granted spans do not make up the item")
        self._future = self._link.worker.move(self._channel, self._tag, buffers, send=False)
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                await asyncio.shield(self._future)
        except TimeoutError:
            raise failed("ucx", "the item did not arrive in time") from None

    async def settled(self) -> None:
        if self._future is not None:
            await asyncio.wait((self._future,))

    async def close(self, *, clean: bool) -> None:
        if clean:
            self._link.put_back(self._channel)
        elif self._future is None or self._future.done():
            self._link.worker.disconnect(self._channel)
        else:
            # An endpoint that is closed under a message costs the process a descriptor.
            loop = asyncio.get_running_loop()
            cut = loop.call_later(_PATIENCE_S, self._link.worker.disconnect, self._channel)
            self._future.add_done_callback(lambda future: self._ended(future, cut))

    def _ended(self, future: asyncio.Future[None], cut: asyncio.TimerHandle) -> None:
        """A read that nobody waits for is over."""
        cut.cancel()
        if future.cancelled() or future.exception() is not None:
            self._link.worker.disconnect(self._channel)
        else:
            self._link.put_back(self._channel)


def _seen(future: asyncio.Future[None]) -> None:
    """A failure that came too late for anybody to wait for it is no news."""
    if not future.cancelled():
        future.exception()


def _fault(requests: Sequence[Any]) -> TransferError | None:
    """The first error of completed requests."""
    for request in requests:
        try:
            request.check_error()
        except Exception as error:  # noqa: BLE001 (the library raises types of its own)
            return failed("ucx", str(error) or type(error).__name__)
    return None
