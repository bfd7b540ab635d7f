"""An HTTP server that answers every request alike: what the load generator can do at most.

`python -m benchmarks.null_server` prints its port when it is up. It finds the end of a body by its
length and parses nothing.
"""

from __future__ import annotations

import asyncio

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_LENGTH = b"content-length:"


class _Null(asyncio.Protocol):
    """Reads requests and answers each at its end."""

    def __init__(self) -> None:
        self._head = b""
        self._left = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, found, body = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            at = head.lower().find(_LENGTH)
            length = head[at + len(_LENGTH) :].split(b"\r\n", 1)[0] if at >= 0 else b"0"
            self._head, self._left, data = b"", int(length), body
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            assert self._transport is not None
            self._transport.write(_ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Null, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
