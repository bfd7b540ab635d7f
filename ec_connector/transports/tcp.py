"""Plain TCP: needs nothing, reaches everything, is the fallback.

The producer listens on a port of its own for data connections. A consumer keeps a pool of them
per peer and lends one to each read; the producer sends the bytes on it as soon as the read is
granted, straight from its region, and they are received straight into the destination. Small
items are moved on the loop, large ones in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from ec_connector.copying import INLINE_BYTES, finish
from ec_connector.framing import keep_alive
from ec_connector.handshake import (
    HANDSHAKE_S,
    ConsumerHandshake,
    HandshakeFailed,
    ProducerHandshake,
)
from ec_connector.messages import MAX_HANDSHAKE_FRAME, Granted, Welcome, pack
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.sockets import Cursor, is_quiet, receive, send, tune
from protocol.deadline import Deadline
from protocol.errors import TransferError, TriptychError

_PURPOSE = "tcp"
_IDLE_CONNECTIONS = 8
"""Kept per peer for the next reads."""


class _Capability(msgspec.Struct, frozen=True):
    port: int


def _failed(message: str) -> TransferError:
    return TransferError(f"tcp: {message}", "transport_failed")


class TcpTransport(Transport):
    """Sends items over data connections that its peers have opened."""

    name = "tcp"
    rank = 40
    pushes = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._listener: socket.socket | None = None
        self._port = 0
        self._accepting: asyncio.Task[None] | None = None
        self._greeting: set[asyncio.Task[None]] = set()
        self._routes: dict[bytes, socket.socket] = {}
        self._pushing: dict[bytes, socket.socket] = {}  # by lease

    async def start(self) -> None:
        host = self.context.config.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, 0), family=family, backlog=128)
        except OSError as error:
            raise _failed(f"cannot listen on {host}: {error}") from None
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def stop(self) -> None:
        tasks = [*self._greeting, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for route in list(self._routes):
            self._drop(route)

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(_Capability(self._port))

    async def push(self, route: bytes, spans: Sequence[memoryview], lease: bytes) -> None:
        sock = self._routes.get(route)
        if sock is None:
            raise _failed("the data connection is gone")
        cursor = Cursor([memoryview(lease), *spans])
        self._pushing[lease] = sock
        try:
            if cursor.left <= INLINE_BYTES:
                send(sock, cursor, socket.MSG_DONTWAIT)
            if cursor.left:
                await _in_thread(self.context.executor, send, sock, cursor)
        except BaseException as error:
            self._drop(route)
            if isinstance(error, OSError):
                raise _failed(str(error)) from None
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

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:  # out of descriptors, or the peer went away at once
                await asyncio.sleep(0.05)
                continue
            task = asyncio.create_task(self._greet(sock))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, sock: socket.socket) -> None:
        """Let a peer prove itself, then keep its connection under a random route."""
        context = self.context
        handshake = ProducerHandshake(context.secret, _PURPOSE, context.epoch, context.fingerprint)
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                while (answer := handshake.receive(await _read_frame(sock))) is not None:
                    await loop.sock_sendall(sock, answer)
                route = secrets.token_bytes(16)
                await loop.sock_sendall(sock, pack(Welcome({_PURPOSE: route})))
        except HandshakeFailed as error:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await loop.sock_sendall(sock, error.reply)
            sock.close()
        except (OSError, TimeoutError):
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            sock.setblocking(True)
            tune(sock)
            keep_alive(sock)
            self._routes[route] = sock
            loop.add_reader(sock, self._drop, route)  # a consumer only ever closes it

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
        context = self._context
        loop = asyncio.get_running_loop()
        handshake = ConsumerHandshake(context.secret, _PURPOSE, context.fingerprint)
        limit = min(context.config.connect_timeout_s, deadline.remaining())
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(limit):
                found = await loop.getaddrinfo(self._peer.host, self._port, type=socket.SOCK_STREAM)
                family, kind, proto, _, address = found[0]
                sock = socket.socket(family, kind, proto)
                sock.setblocking(False)
                tune(sock)
                await loop.sock_connect(sock, address)
                await loop.sock_sendall(sock, handshake.hello)
                while isinstance(answer := handshake.receive(await _read_frame(sock)), bytes):
                    await loop.sock_sendall(sock, answer)
            if handshake.epoch != self._peer.epoch:
                raise _failed("the peer has restarted")
            sock.setblocking(True)
            keep_alive(sock)
            return sock, answer.transports[_PURPOSE]
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, TimeoutError):
                raise _failed(f"no data connection within {limit:.1f} s") from None
            if isinstance(error, OSError | HandshakeFailed):
                raise _failed(f"no data connection: {error}") from None
            if isinstance(error, TriptychError):
                raise _failed(error.message) from None
            raise

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
        header = bytearray(len(granted.lease))
        cursor = Cursor([memoryview(header), *into])
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                if cursor.left <= INLINE_BYTES + len(header):
                    while cursor.left:
                        receive(self._sock, cursor, socket.MSG_DONTWAIT)
                        if cursor.left:
                            await _readable(self._sock)
                else:
                    await _in_thread(self._context.executor, receive, self._sock, cursor)
        except TimeoutError:
            raise _failed("the item did not arrive in time") from None
        except OSError as error:
            raise _failed(str(error)) from None
        if header != granted.lease:
            raise _failed("the connection carries another read's bytes")

    async def close(self, *, clean: bool) -> None:
        if clean:
            self._link.put_back((self._sock, self.route))
        else:
            self._sock.close()


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


async def _read_frame(sock: socket.socket) -> bytes:
    """A handshake frame's body from a non-blocking socket."""
    size = int.from_bytes(await _read_exactly(sock, 4), "big")
    if size > MAX_HANDSHAKE_FRAME:
        raise HandshakeFailed("frame too large")
    return await _read_exactly(sock, size)


async def _read_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise ConnectionResetError("the peer closed the connection")
        data += chunk
    return bytes(data)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _readable(sock: socket.socket) -> None:
    """Wait until something has arrived."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _wake, future)
    try:
        await future
    finally:
        loop.remove_reader(sock)
