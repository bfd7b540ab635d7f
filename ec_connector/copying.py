"""Copying bytes between buffers without holding the event loop or the GIL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np

T = TypeVar("T")

INLINE_BYTES = 2**20
"""Up to here moving bytes on the loop (some 100 us) costs less than waking a thread."""


def as_bytes(buffer: memoryview | bytes | bytearray) -> memoryview:
    """A contiguous buffer as a flat view of bytes.

    Raises:
        TypeError: it is not contiguous.
    """
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def copy(source: memoryview, destination: memoryview) -> None:
    """Copy equally many bytes; numpy lets other threads run meanwhile."""
    np.copyto(np.frombuffer(destination, np.uint8), np.frombuffer(source, np.uint8))


def scatter(sources: Sequence[memoryview], destinations: Sequence[memoryview]) -> None:
    """Copy lists of buffers of equal total size, however each is cut."""
    for source, destination in pair(sources, destinations):
        copy(source, destination)


def pair(
    sources: Sequence[memoryview], destinations: Sequence[memoryview]
) -> list[tuple[memoryview, memoryview]]:
    """Cut two lists of buffers of equal total size into pieces that correspond."""
    pieces = []
    rest = iter(sources)
    source = memoryview(b"")
    for whole in destinations:
        destination = whole
        while destination.nbytes:
            while not source.nbytes:
                source = next(rest)
            size = min(source.nbytes, destination.nbytes)
            pieces.append((source[:size], destination[:size]))
            source, destination = source[size:], destination[size:]
    return pieces


async def finish(awaitable: Awaitable[T]) -> T:
    """Wait to the end even when cancelled; a cancellation is raised afterwards.

    For work that touches memory which is given back as soon as the caller returns.
    """
    future = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # seen, and less important
        raise cancelled
    return future.result()


async def run(executor: Executor, nbytes: int, work: Callable[[], T]) -> T:
    """Do work on `nbytes` bytes here if they are few, else in a thread, to the end either way."""
    if nbytes <= INLINE_BYTES:
        return work()
    return await finish(asyncio.get_running_loop().run_in_executor(executor, work))
