"""Gather and scatter on raw stream sockets, in the kernel: no copy in Python.

The sockets are in blocking mode; the calls on the loop use MSG_DONTWAIT, those in threads block.
A blocked thread is freed by `shutdown` of its socket.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

_IOV_MAX = 1024
_BUFFER = 4 * 2**20


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
    while cursor.left:
        try:
            count = sock.recvmsg_into(cursor.next(), 0, flags or socket.MSG_WAITALL)[0]
        except BlockingIOError:
            return
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        cursor.advance(count)


def tune(sock: socket.socket) -> None:
    """Send at once, with large buffers where the system allows larger ones than it would take."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def is_quiet(sock: socket.socket) -> bool:
    """Whether an idle connection is still open and nothing came that nobody asked for."""
    try:
        sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
