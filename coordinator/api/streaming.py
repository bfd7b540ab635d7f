"""Answers that end with their client: a disconnect cancels the work, wherever it is.

Status and headers are sent only when the first event, or the whole answer, is there: an error
before it keeps its own status.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import InternalError, TriptychError, body
from serving.http import SSE_DONE, sse

_log = logging.getLogger(__name__)


class WholeAnswer(Response):
    """Runs a coroutine to the response that it returns."""

    def __init__(self, work: Coroutine[Any, Any, Response]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; raises the work's error."""
        response = await _until_disconnect(receive, self._work)
        await response(scope, receive, send)


class EventStream(Response):
    """Sends server-sent events as they come, then `[DONE]`.

    Args:
        events: encoded events; closed when the client goes away.
        request_id: named in an error that comes after the first event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], request_id: str) -> None:
        super().__init__()
        self._events = events
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; raises what comes before the first event."""
        await _until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            first = await anext(events, b"")
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _send(send, first)
            try:
                async for event in events:
                    await _send(send, event)
            except TriptychError as error:
                await _send(send, sse(body(error, self._request_id)))
            except Exception as error:  # noqa: BLE001
                _log.exception("a stream failed", exc_info=error)
                failed = InternalError("Internal server error")
                await _send(send, sse(body(failed, self._request_id)))
        await _send(send, SSE_DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the work.

    Raises:
        ClientDisconnect: the client went first; the work was cancelled and has ended.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
