"""Gather and scatter on raw stream sockets, in the kernel: no copy in Python.

The sockets are in blocking mode; the calls on the loop use MSG_DONTWAIT, those in threads block.
A blocked thread is freed by `shutdown` of its socket.
"""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

_IOV_MAX = 1024
_BUFFER = 32 * 2**20
_SETTINGS = Path("/proc/sys/net")


class Cursor:
    """Buffers of which a first part is done."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._index = 0
        self._offset = 0
        self.left = sum(buffer.nbytes for buffer in buffers)

    def next(self) -> list[memoryview]:
        """What comes next, as many buffers as one call takes."""
        batch = list(self._buffers[self._index : self._index + _IOV_MAX])
        if self._offset:
            batch[0] = batch[0][self._offset :]
        return batch

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        self.left -= count
        count += self._offset
        while self._index < len(self._buffers) and count >= self._buffers[self._index].nbytes:
            count -= self._buffers[self._index].nbytes
            self._index += 1
        self._offset = count


def send(sock: socket.socket, cursor: Cursor, flags: int = 0) -> None:
    """Send until all is sent; with MSG_DONTWAIT until the socket takes no more.

    Raises:
        OSError: the connection is gone.
    """
    if isinstance(sock, ssl.SSLSocket):
        while cursor.left:
            cursor.advance(sock.send(cursor.next()[0]))
        return
    while cursor.left:
        try:
            cursor.advance(sock.sendmsg(cursor.next(), (), flags | socket.MSG_NOSIGNAL))
        except BlockingIOError:
            return


def receive(sock: socket.socket, cursor: Cursor, flags: int = 0) -> None:
    """Receive until all is there; with MSG_DONTWAIT until nothing more has arrived.

    Raises:
        OSError: the connection is gone.
    """
    encrypted = isinstance(sock, ssl.SSLSocket)
    while cursor.left:
        try:
            if encrypted:
                count = sock.recv_into(cursor.next()[0])
            else:
                count = sock.recvmsg_into(cursor.next(), 0, flags or socket.MSG_WAITALL)[0]
        except BlockingIOError:
            return
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        cursor.advance(count)


def tune(sock: socket.socket) -> None:
    """Send at once, with large buffers; to be called before connecting or listening."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, size in _buffers().items():
        sock.setsockopt(socket.SOL_SOCKET, option, size)


@functools.cache
def _buffers() -> dict[int, int]:
    """Sizes to set: the largest allowed, where the kernel would not grow them as far by itself."""
    found = {}
    for option, most, grown in (
        (socket.SO_SNDBUF, "core/wmem_max", "ipv4/tcp_wmem"),
        (socket.SO_RCVBUF, "core/rmem_max", "ipv4/tcp_rmem"),
    ):
        try:
            allowed = min(_BUFFER, int((_SETTINGS / most).read_text()))
            by_itself = int((_SETTINGS / grown).read_text().split()[2])
        except (OSError, ValueError, IndexError):
            continue
        if 2 * allowed > by_itself:  # the kernel doubles what is asked for
            found[option] = allowed
    return found
