"""Plain TCP: needs nothing, reaches everything, is the fallback.

The producer listens on a port of its own for data connections. A consumer keeps a pool of them
per peer and lends one to each read; the producer sends the bytes on it as soon as the read is
granted, straight from its region, and they are received straight into the destination. Small
items are moved on the loop, large ones in threads. The id of the lease follows the bytes, so that
a consumer knows them for those that it asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from ec_connector.allocator import ALIGNMENT
from ec_connector.copying import INLINE_BYTES, finish
from ec_connector.framing import keep_alive
from ec_connector.messages import Granted
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import Listener, dial, failed, readable
from ec_connector.transports.sockets import Cursor, is_quiet, receive, send, tune
from protocol.deadline import Deadline

_LEASE_BYTES = 16
_IDLE_CONNECTIONS = 8
"""Kept per peer for the next reads."""


class _Capability(msgspec.Struct, frozen=True):
    port: int


class TcpTransport(Transport):
    """Sends items over data connections that its peers have opened."""

    name = "tcp"
    rank = 40
    pushes = True
    names_spans = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._listener: Listener | None = None
        self._port = 0
        self._routes: dict[bytes, socket.socket] = {}
        self._pushing: dict[bytes, socket.socket] = {}  # by lease

    async def start(self) -> None:
        host = self.context.config.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(listening)  # what is accepted inherits it
            listening.bind((host, 0))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise failed(self.name, f"cannot listen on {host}: {error}") from None
        self._port = listening.getsockname()[1]
        self._listener = Listener(self.context, listening, self.name, self._accepted)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        for route in list(self._routes):
            self._drop(route)

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(_Capability(self._port))

    async def push(self, route: bytes, spans: Sequence[memoryview], lease: bytes) -> None:
        sock = self._routes.get(route)
        if sock is None:
            raise failed(self.name, "the data connection is gone")
        nbytes = sum(span.nbytes for span in spans)
        cursor = Cursor([*spans, memoryview(lease + bytes(_padding(nbytes)))])
        self._pushing[lease] = sock
        try:
            if nbytes <= INLINE_BYTES:
                send(sock, cursor, socket.MSG_DONTWAIT)
            if cursor.left:
                await _in_thread(self.context.executor, send, sock, cursor)
        except BaseException as error:
            self._drop(route)
            if isinstance(error, OSError):
                raise failed(self.name, str(error)) from None
            raise
        finally:
            del self._pushing[lease]
            if route not in self._routes:
                sock.close()

    def lapse(self, lease: bytes) -> None:
        sock = self._pushing.get(lease)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        port = msgspec.msgpack.decode(capability, type=_Capability).port
        link = TcpLink(self.context, peer, port)
        link.put_back(await link.connect(deadline))
        return link

    def _accepted(self, sock: socket.socket) -> bytes:
        """Keep a consumer's connection under a random route."""
        route = secrets.token_bytes(16)
        keep_alive(sock)
        self._routes[route] = sock
        # A consumer sends nothing more on it: readable means closed.
        asyncio.get_running_loop().add_reader(sock, self._drop, route)
        return route

    def _drop(self, route: bytes) -> None:
        sock = self._routes.pop(route, None)
        if sock is None:
            return
        asyncio.get_running_loop().remove_reader(sock)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        if sock not in self._pushing.values():
            sock.close()  # otherwise the push that uses it fails and closes it


class TcpLink(Link):
    """The data connections to one peer."""

    def __init__(self, context: Context, peer: PeerInfo, port: int) -> None:
        self._context = context
        self._peer = peer
        self._port = port
        self._idle: list[tuple[socket.socket, bytes]] = []
        self._closed = False

    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        while self._idle:
            sock, route = self._idle.pop()
            if is_quiet(sock):
                break
            sock.close()
        else:
            sock, route = await self.connect(deadline)
        return TcpChannel(self, self._context, sock, route)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()

    async def connect(self, deadline: Deadline) -> tuple[socket.socket, bytes]:
        """A new data connection and the route that it has at the peer."""
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
        return sock, await dial(self._context, sock, address, "tcp", self._peer, deadline)

    def put_back(self, connection: tuple[socket.socket, bytes]) -> None:
        """Keep a connection whose read ended well."""
        if self._closed or len(self._idle) >= _IDLE_CONNECTIONS:
            connection[0].close()
        else:
            self._idle.append(connection)


class TcpChannel(Channel):
    """One data connection, lent to one read."""

    def __init__(self, link: TcpLink, context: Context, sock: socket.socket, route: bytes) -> None:
        self.route = route
        self._link = link
        self._context = context
        self._sock = sock

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        trailer = bytearray(len(granted.lease) + _padding(granted.nbytes))
        cursor = Cursor([*into, memoryview(trailer)])
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                if granted.nbytes <= INLINE_BYTES:
                    while cursor.left:
                        receive(self._sock, cursor, socket.MSG_DONTWAIT)
                        if cursor.left:
                            await readable(self._sock)
                else:
                    await _in_thread(self._context.executor, receive, self._sock, cursor)
        except TimeoutError:
            raise failed("tcp", "the item did not arrive in time") from None
        except OSError as error:
            raise failed("tcp", str(error)) from None
        if not trailer.startswith(granted.lease):
            raise failed("tcp", "the connection carries another read's bytes")

    async def close(self, *, clean: bool) -> None:
        if clean:
            self._link.put_back((self._sock, self.route))
        else:
            self._sock.close()


def _padding(nbytes: int) -> int:
    """Bytes after an item and its lease, so that what a thread sends keeps its alignment.

    The kernel fills its pages one after the other; sixteen odd bytes among them make all later
    copies of that thread half as fast.
    """
    return -(nbytes + _LEASE_BYTES) % ALIGNMENT if nbytes > INLINE_BYTES else 0


async def _in_thread(
    executor: Executor,
    move: Callable[[socket.socket, Cursor], None],
    sock: socket.socket,
    cursor: Cursor,
) -> None:
    """Move bytes in a thread; when cancelled, break the connection to free the thread first."""
    thread = asyncio.get_running_loop().run_in_executor(executor, move, sock, cursor)
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        await finish(asyncio.gather(thread, return_exceptions=True))
        raise
