"""Structured concurrency: running things together and cleaning up after them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from protocol.errors import TriptychError

T = TypeVar("T")

_MERGE_QUEUE = 64

_log = logging.getLogger(__name__)


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once; results in order. The first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failed:
        raise _first(failed) from None
    return [task.result() for task in tasks]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class Janitor:
    """Finishes clean-up that must happen although its request is gone.

    Tasks are kept until they end; `stop` waits for them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def finish(self, cleanup: Awaitable[Any]) -> None:
        """Run it in the background; a TriptychError is logged."""
        task = asyncio.create_task(self._run(cleanup))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Wait for everything handed in; each has its own deadline."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, cleanup: Awaitable[Any]) -> None:
        try:
            await cleanup
        except TriptychError as error:
            _log.info("clean-up failed, the lease will expire: %s", error)


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """What all streams yield, as it comes; the first failure ends them all and is raised."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for value in only:
                yield value
        return
    queue: asyncio.Queue[tuple[T]] = asyncio.Queue(_MERGE_QUEUE)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stream):
            async for value in stream:
                await queue.put((value,))

    pumps = asyncio.create_task(together(pump(stream) for stream in streams))
    waiting: asyncio.Task[tuple[T]] | None = None
    try:
        while not (pumps.done() and queue.empty()):
            waiting = waiting or asyncio.create_task(queue.get())
            await asyncio.wait({waiting, pumps}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                (value,), waiting = waiting.result(), None
                yield value
        await pumps
    finally:
        pumps.cancel()
        if waiting is not None:
            waiting.cancel()
        await asyncio.gather(pumps, return_exceptions=True)


async def until(ended: asyncio.Event, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What a stream yields, until the event is set; the stream is then closed."""
    end = asyncio.create_task(ended.wait())
    step: asyncio.Task[T] | None = None
    try:
        while not ended.is_set():
            step = asyncio.create_task(next_of(stream))
            await asyncio.wait({step, end}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                return
            try:
                value = step.result()
            except StopStream:
                return
            yield value
    finally:
        end.cancel()
        if step is not None:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await asyncio.gather(end, return_exceptions=True)
        await stream.aclose()


class StopStream(Exception):
    """A task cannot raise StopAsyncIteration."""


async def next_of(stream: AsyncGenerator[T, None]) -> T:
    """The next value; raises StopStream at the end."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise StopStream from None
