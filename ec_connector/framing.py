"""An asyncio protocol of length-prefixed frames, for both ends of the exchange."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import cast

from ec_connector.messages import MAX_FRAME, MAX_HANDSHAKE_FRAME, Frame, pack

_MAX_UNSENT = 64 * 2**20
"""A peer that reads nothing while we answer it is cut off at this many bytes."""


class FrameProtocol(asyncio.Protocol, ABC):
    """Calls `frame_received` per frame. Subclasses override it and `closed`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.max_frame = MAX_HANDSHAKE_FRAME
        self._held: list[bytes] | None = None

    def authenticated(self) -> None:
        """The peer has proven itself: it may send large frames."""
        self.max_frame = MAX_FRAME

    @abstractmethod
    def frame_received(self, body: memoryview) -> None:
        """One frame's body, valid during the call."""

    @abstractmethod
    def closed(self, reason: str) -> None:
        """The connection is gone."""

    def send(self, frame: Frame) -> None:
        """Queue a frame; silently dropped where the connection is gone (`closed` tells)."""
        self.send_packed(pack(frame))

    def send_packed(self, frame: bytes) -> None:
        """Queue an already packed frame.

        The first of a turn of the loop goes at once, those after it together at the turn's end:
        each write wakes the peer.
        """
        if self._held is not None:
            self._held.append(frame)
            return
        self._held = []
        asyncio.get_running_loop().call_soon(self.write_held)
        self._write(frame)

    def write_held(self) -> None:
        """Write what was held back, now."""
        held, self._held = self._held, None
        if held:
            self._write(b"".join(held))

    def _write(self, frame: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(frame)
        if self.transport.get_write_buffer_size() > _MAX_UNSENT:
            self.transport.abort()

    def close_after_writing(self) -> None:
        """Send what was queued, then close."""
        self.write_held()
        if self.transport is not None:
            self.transport.close()

    def fail(self) -> None:
        """Close at once: what the peer sends makes no sense."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        end = len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= 4:
                size = int.from_bytes(view[start : start + 4], "big")
                if size > self.max_frame:
                    self.fail()
                    return
                if end - start - 4 < size:
                    break
                with view[start + 4 : start + 4 + size] as body:
                    self.frame_received(body)
                start += 4 + size
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.closed("closed" if exc is None else type(exc).__name__)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a peer that is gone without a word, within half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
