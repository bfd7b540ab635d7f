"""Runs an ASGI application in the current event loop, on a port that is known when it is up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from protocol.errors import Unavailable

_KEEP_ALIVE_S = 75
"""Longer than clients and load balancers keep idle connections (5 to 60 s): the side that closes
one while the other sends a request loses that request."""


class HttpServer:
    """uvicorn without its signal handlers.

    Args:
        app: the application; its lifespan is run.
        host, port: where to listen; port 0 picks a free one.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port.

        Raises:
            Unavailable: the address is taken.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # With its protocol named, asyncio turns Nagle's algorithm off on accepted connections;
        # a small answer, written as head and body, would wait for the client's delayed ACK.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._host, self._port))
        except OSError as error:
            sock.close()
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from None
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise Unavailable("the HTTP application failed to start")
            await asyncio.sleep(0.005)
        port: int = sock.getsockname()[1]
        return port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop accepting, let running requests end within `grace_s`, then cancel them."""
        if self._server is None or self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await self._task
        self._server = self._task = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever owns the process."""
        yield
