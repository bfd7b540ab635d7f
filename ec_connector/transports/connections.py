"""A transport's own connections: accepted and dialled, each after the mutual proof of the token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from ec_connector.handshake import (
    HANDSHAKE_S,
    ConsumerHandshake,
    HandshakeFailed,
    ProducerHandshake,
)
from ec_connector.messages import MAX_HANDSHAKE_FRAME, Welcome, pack
from ec_connector.transports.base import Context, PeerInfo
from protocol.deadline import Deadline
from protocol.errors import TransferError, TriptychError

_MAX_STRANGERS = 256
"""Connections that have not proven themselves yet; more are closed at once."""


class Listener:
    """Accepts connections and hands over those that have proven themselves.

    Args:
        listening: a bound and listening socket; closed by `stop`.
        purpose: the transport's name.
        accepted: called with the blocking socket; returns what the peer is told.
    """

    def __init__(
        self,
        context: Context,
        listening: socket.socket,
        purpose: str,
        accepted: Callable[[socket.socket], bytes],
    ) -> None:
        self._context = context
        self._listening = listening
        self._purpose = purpose
        self._accepted = accepted
        self._greeting: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """Accept no more."""
        tasks = [self._accepting, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError:  # out of descriptors, or the peer went away at once
                await asyncio.sleep(0.05)
                continue
            if len(self._greeting) >= _MAX_STRANGERS:
                sock.close()
                continue
            task = asyncio.create_task(self._greet(sock))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, sock: socket.socket) -> None:
        context = self._context
        handshake = ProducerHandshake(
            context.secret, self._purpose, context.epoch, context.fingerprint
        )
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                while (answer := handshake.receive(await _read_frame(sock))) is not None:
                    await loop.sock_sendall(sock, answer)
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
            welcome = pack(Welcome({self._purpose: self._accepted(sock)}))
            with contextlib.suppress(OSError):
                sock.send(welcome, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


async def dial(
    context: Context,
    sock: socket.socket,
    address: Any,
    purpose: str,
    peer: PeerInfo,
    deadline: Deadline,
) -> bytes:
    """Connect a socket and prove ourselves; it is blocking afterwards.

    Returns:
        what the listener told us. The socket is closed where it raises.

    Raises:
        TransferError: `transport_failed`.
    """
    loop = asyncio.get_running_loop()
    handshake = ConsumerHandshake(context.secret, purpose, context.fingerprint)
    limit = context.config.connect_timeout_s
    sock.setblocking(False)
    try:
        limit = min(limit, deadline.remaining("transfer"))
        async with asyncio.timeout(limit):
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, handshake.hello)
            while isinstance(answer := handshake.receive(await _read_frame(sock)), bytes):
                await loop.sock_sendall(sock, answer)
        if handshake.epoch != peer.epoch:
            raise failed(purpose, "another process answers there")
        sock.setblocking(True)
        return answer.transports[purpose]
    except BaseException as error:
        sock.close()
        if isinstance(error, TimeoutError):
            raise failed(purpose, f"no connection within {limit:.1f} s") from None
        if isinstance(error, OSError | HandshakeFailed | KeyError):
            raise failed(purpose, f"no connection: {error}") from None
        if isinstance(error, TriptychError):
            raise failed(purpose, error.message) from None
        raise


def failed(transport: str, message: str) -> TransferError:
    """The error of a transport that does not get there."""
    return TransferError(f"{transport}: {message}", "transport_failed")


async def _read_frame(sock: socket.socket) -> bytes:
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


async def readable(sock: socket.socket) -> None:
    """Wait until something has arrived."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _wake, future)
    try:
        await future
    finally:
        loop.remove_reader(sock)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
