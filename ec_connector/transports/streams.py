"""One data connection: bytes out of and into lists of buffers, broken off at will.

What is small is moved on the loop, what is large in a thread. TLS, where it is on, begins after
the mutual proof of the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from ec_connector.copying import INLINE_BYTES, finish
from ec_connector.transports.connections import readable
from ec_connector.transports.sockets import Cursor, receive, send


class Stream:
    """A connected, blocking socket that is lent to one read at a time.

    Args:
        route: its name at the producer.
    """

    def __init__(self, sock: socket.socket, route: bytes, executor: Executor) -> None:
        self.route = route
        self._sock = sock
        self._executor = executor
        self._encrypted = isinstance(sock, ssl.SSLSocket)

    def fileno(self) -> int:
        """For the loop to watch."""
        return self._sock.fileno()

    async def send(self, buffers: Sequence[memoryview]) -> None:
        """Send all; nothing reads the buffers any more when it returns or raises.

        Raises:
            OSError: the connection is gone.
        """
        cursor = Cursor(buffers)
        if cursor.left <= INLINE_BYTES and not self._encrypted:
            send(self._sock, cursor, socket.MSG_DONTWAIT)
        if cursor.left:
            await self._in_thread(send, cursor)

    async def receive(self, buffers: Sequence[memoryview]) -> None:
        """Fill all; nothing writes to the buffers any more when it returns or raises.

        Raises:
            OSError: the connection is gone.
        """
        cursor = Cursor(buffers)
        if cursor.left > INLINE_BYTES + 2 * 4096 or self._encrypted:
            await self._in_thread(receive, cursor)
            return
        while cursor.left:
            receive(self._sock, cursor, socket.MSG_DONTWAIT)
            if cursor.left:
                await readable(self._sock)

    def is_quiet(self) -> bool:
        """Whether an idle connection is still open and nothing came that nobody asked for."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def break_off(self) -> None:
        """Have what is under way end with an error."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back; nothing may be under way."""
        self._sock.close()

    async def _in_thread(
        self, move: Callable[[socket.socket, Cursor], None], cursor: Cursor
    ) -> None:
        """Move in a thread; when cancelled, break the connection to free the thread first."""
        loop = asyncio.get_running_loop()
        thread = loop.run_in_executor(self._executor, move, self._sock, cursor)
        try:
            await asyncio.shield(thread)
        except asyncio.CancelledError:
            self.break_off()
            await finish(asyncio.gather(thread, return_exceptions=True))
            raise


async def all_together(streams: Sequence[Stream], moves: Sequence[Awaitable[None]]) -> None:
    """Wait for a move on each stream; one that fails breaks off the others.

    All have ended when it returns or raises.
    """
    if len(moves) == 1:
        await moves[0]
        return
    tasks = [asyncio.ensure_future(move) for move in moves]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    except BaseException:
        for stream in streams:
            stream.break_off()
        await finish(asyncio.gather(*tasks, return_exceptions=True))
        raise
