"""Answers that end with their client: a disconnect cancels the work, wherever it is.

Status and headers are sent only when the first event, or the whole answer, is there: an error
before it keeps its own status.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.visit import Visit
from protocol.errors import InternalError, TriptychError, body
from serving.http import SSE_DONE, sse

_log = logging.getLogger(__name__)


class WholeAnswer(Response):
    """Runs a coroutine to the response that it returns."""

    def __init__(self, work: Coroutine[Any, Any, Response], visit: Visit) -> None:
        super().__init__()
        self._work = work
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; raises the work's error."""
        with _leaving(self._visit):
            response = await _until_disconnect(receive, self._work)
            response.headers.update(self._visit.headers())
            await response(scope, receive, send)


class EventStream(Response):
    """Sends server-sent events as they come, then `[DONE]`.

    Args:
        events: encoded events; closed when the client goes away.
        visit: ended with the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], visit: Visit) -> None:
        super().__init__()
        self._events = events
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; raises what comes before the first event."""
        with _leaving(self._visit):
            await _until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            first = await anext(events, b"")
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                *((k.lower().encode(), v.encode()) for k, v in self._visit.headers().items()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _send(send, first)
            try:
                async for event in events:
                    await _send(send, event)
            except TriptychError as error:
                await self._fail(send, error, error)
            except Exception as error:  # noqa: BLE001
                _log.exception("a stream failed", exc_info=error)
                await self._fail(send, InternalError("Internal server error"), error)
        await _send(send, SSE_DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, send: Send, shown: TriptychError, error: Exception) -> None:
        """The status is sent already: the error becomes an event."""
        await _send(send, sse(body(shown, self._visit.receipt.request_id)))
        self._visit.end(error)


@contextlib.contextmanager
def _leaving(visit: Visit) -> Iterator[None]:
    """The visit ends as the block does."""
    with visit.until_answered():
        yield
    visit.end(None)


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
