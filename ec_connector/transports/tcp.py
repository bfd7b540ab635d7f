"""Plain TCP: needs nothing, reaches everything, is the fallback.

The producer listens on a port of its own for data connections. A consumer keeps a pool of them
per peer and lends one to each read, or several to a large one, which is then striped over them.
The producer sends the bytes as soon as the read is granted, straight from its region, and they
are received straight into the destination. The id of the lease follows the bytes on each stream,
so that a consumer knows them for those that it asked for. What is small travels in the exchange's
answer: a connection of its own would cost more than the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
from collections.abc import Sequence

import msgspec

from ec_connector.allocator import ALIGNMENT
from ec_connector.copying import INLINE_BYTES
from ec_connector.encryption import Encryption
from ec_connector.framing import keep_alive
from ec_connector.messages import Granted
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import Listener, dial, failed
from ec_connector.transports.sockets import tune
from ec_connector.transports.streams import Stream, all_together
from protocol.deadline import Deadline

_LEASE_BYTES = 16
_ROUTE_BYTES = 16
_IDLE_STREAMS = 16
"""Kept per peer for the next reads."""

_STRIPE_BYTES = 4 * 2**20
"""Least part of an item that is worth a stream of its own."""


class _Capability(msgspec.Struct, frozen=True):
    port: int
    encrypted: bool


class TcpTransport(Transport):
    """Sends items over data connections that its peers have opened."""

    name = "tcp"
    rank = 40
    pushes = True
    names_spans = False
    inlines = 64 * 1024

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._listener: Listener | None = None
        self._encryption = context.encryption
        self._wrapping: dict[bytes, asyncio.Task[None]] = {}
        self._port = 0
        self._routes: dict[bytes, Stream] = {}
        self._pushing: dict[bytes, list[Stream]] = {}  # by lease

    async def start(self) -> None:
        config = self.context.config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(listening)  # what is accepted inherits it
            listening.bind((config.host, 0))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise failed(self.name, f"cannot listen on {config.host}: {error}") from None
        self._port = listening.getsockname()[1]
        self._listener = Listener(self.context, listening, self.name, self._accepted)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        tasks = list(self._wrapping.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for route in list(self._routes):
            self._drop(route)

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(_Capability(self._port, self._encryption is not None))

    async def push(self, route: bytes, spans: Sequence[memoryview], lease: bytes) -> None:
        names = [route[i : i + _ROUTE_BYTES] for i in range(0, len(route), _ROUTE_BYTES)]
        for task in [self._wrapping[name] for name in names if name in self._wrapping]:
            await asyncio.wait((task,))  # the consumer is through with TLS a moment before us
        streams = [self._routes[name] for name in names if name in self._routes]
        if not streams or len(streams) != len(names):
            raise failed(self.name, "the data connection is gone")
        nbytes = sum(span.nbytes for span in spans)
        self._pushing[lease] = streams
        try:
            parts = stripes(nbytes, len(streams))
            moves = [
                stream.send([*_cut(spans, start, size), memoryview(lease + bytes(_padding(size)))])
                for stream, (start, size) in zip(streams, parts, strict=True)
            ]
            await all_together(streams, moves)
        except BaseException as error:
            for name in names:
                self._drop(name)
            if isinstance(error, OSError):
                raise failed(self.name, str(error)) from None
            raise
        finally:
            del self._pushing[lease]
            for stream in streams:
                if stream.route not in self._routes:
                    stream.close()

    def lapse(self, lease: bytes) -> None:
        for stream in self._pushing.get(lease, ()):
            stream.break_off()

    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        offered = msgspec.msgpack.decode(capability, type=_Capability)
        if offered.encrypted != (self._encryption is not None):
            raise failed(self.name, "TLS is on at one end only")
        link = TcpLink(self.context, peer, offered.port, self._encryption)
        link.put_back(await link.connect(deadline))
        return link

    def _accepted(self, sock: socket.socket) -> bytes:
        """Keep a consumer's connection under a random route."""
        route = secrets.token_bytes(_ROUTE_BYTES)
        keep_alive(sock)
        if self._encryption is None:
            self._keep(sock, route)
        else:
            task = asyncio.create_task(self._wrap(self._encryption, sock, route))
            self._wrapping[route] = task
            task.add_done_callback(lambda _: self._wrapping.pop(route))
        return route

    async def _wrap(self, encryption: Encryption, sock: socket.socket, route: bytes) -> None:
        with contextlib.suppress(OSError):
            self._keep(await encryption.wrap(sock, self.context.executor, producer=True), route)

    def _keep(self, sock: socket.socket, route: bytes) -> None:
        self._routes[route] = Stream(sock, route, self.context.executor)
        # A consumer sends nothing more on it: readable means closed.
        asyncio.get_running_loop().add_reader(sock, self._drop, route)

    def _drop(self, route: bytes) -> None:
        stream = self._routes.pop(route, None)
        if stream is None:
            return
        asyncio.get_running_loop().remove_reader(stream.fileno())
        stream.break_off()
        if not any(stream in streams for streams in self._pushing.values()):
            stream.close()  # otherwise the push that uses it fails and closes it


class TcpLink(Link):
    """The data connections to one peer."""

    def __init__(
        self, context: Context, peer: PeerInfo, port: int, encryption: Encryption | None
    ) -> None:
        self._context = context
        self._peer = peer
        self._port = port
        self._encryption = encryption
        self._idle: list[Stream] = []
        self._closed = False

    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        wanted = max(1, min(self._context.config.tcp_streams, nbytes // _STRIPE_BYTES))
        streams: list[Stream] = []
        try:
            while len(streams) < wanted:
                streams.append(self._take() or await self.connect(deadline))
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return TcpChannel(self, streams)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def connect(self, deadline: Deadline) -> Stream:
        """A new data connection.

        Raises:
            TransferError: `transport_failed`.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._peer.host, self._port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise failed("tcp", f"{self._peer.host}: {error}") from None
        family, kind, proto, _, address = found[0]
        sock = socket.socket(family, kind, proto)
        tune(sock)
        keep_alive(sock)
        route = await dial(self._context, sock, address, "tcp", self._peer, deadline)
        executor = self._context.executor
        if self._encryption is not None:
            try:
                sock = await self._encryption.wrap(sock, executor, producer=False)
            except OSError as error:
                raise failed("tcp", f"TLS: {error}") from None
        return Stream(sock, route, executor)

    def put_back(self, stream: Stream) -> None:
        """Keep a connection whose read ended well."""
        if self._closed or len(self._idle) >= _IDLE_STREAMS:
            stream.close()
        else:
            self._idle.append(stream)

    def _take(self) -> Stream | None:
        while self._idle:
            stream = self._idle.pop()
            if stream.is_quiet():
                return stream
            stream.close()
        return None


class TcpChannel(Channel):
    """Data connections, lent to one read."""

    def __init__(self, link: TcpLink, streams: list[Stream]) -> None:
        self.route = b"".join(stream.route for stream in streams)
        self._link = link
        self._streams = streams

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        trailers, moves = [], []
        parts = stripes(granted.nbytes, len(self._streams))
        for stream, (start, size) in zip(self._streams, parts, strict=True):
            trailer = bytearray(_LEASE_BYTES + _padding(size))
            trailers.append(trailer)
            moves.append(stream.receive([*_cut(into, start, size), memoryview(trailer)]))
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                await all_together(self._streams, moves)
        except TimeoutError:
            raise failed("tcp", "the item did not arrive in time") from None
        except OSError as error:
            raise failed("tcp", str(error)) from None
        finally:
            for move in moves:
                move.close()  # those that were never awaited
        if not all(trailer.startswith(granted.lease) for trailer in trailers):
            raise failed("tcp", "the connection carries another read's bytes")

    async def close(self, *, clean: bool) -> None:
        for stream in self._streams:
            if clean:
                self._link.put_back(stream)
            else:
                stream.close()


def stripes(nbytes: int, count: int) -> list[tuple[int, int]]:
    """The parts of an item that go over `count` streams: (start, size), pages kept whole."""
    pages = -(-nbytes // ALIGNMENT)
    edges = [min(nbytes, pages * i // count * ALIGNMENT) for i in range(count)] + [nbytes]
    return [(start, end - start) for start, end in itertools.pairwise(edges)]


def _cut(buffers: Sequence[memoryview], start: int, size: int) -> list[memoryview]:
    """The bytes [start, start + size) of the buffers one after the other."""
    found = []
    for buffer in buffers:
        if size and start < buffer.nbytes:
            piece = buffer[start : start + size]
            found.append(piece)
            size -= piece.nbytes
        start = max(0, start - buffer.nbytes)
    return found


def _padding(nbytes: int) -> int:
    """Bytes after an item and its lease, so that what a thread sends keeps its alignment.

    The kernel fills its pages one after the other; sixteen odd bytes among them make all later
    copies of that thread half as fast.
    """
    return -(nbytes + _LEASE_BYTES) % ALIGNMENT if nbytes > INLINE_BYTES else 0
