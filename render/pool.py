"""The pool of media processes, seen from the event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NamedTuple

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, InternalError, Overloaded, Unavailable
from render.families.base import Run
from render.media_process import MediaJob, MediaResult, initialise, process, ready

_START_TIMEOUT_S = 120.0
_ATTEMPTS = 2
"""A process that dies takes the jobs of its pool along; each is tried once more."""


class ProcessedItem(NamedTuple):
    """One medium after processing: what a request needs of it.

    Attributes:
        mm_hash: content hash.
        item: the encoded item (encoder inputs and metadata), base64 where the job asks for text.
        metadata: the encoded metadata item, None where there is none.
        runs: the tokens that its placeholder is replaced by.
    """

    mm_hash: str
    item: bytes
    metadata: bytes | None
    runs: tuple[Run, ...]


class MediaPool:
    """Runs media jobs in processes of their own.

    Args:
        path: the checkpoint's directory.
        processes: how many, 0: one per core.
        max_pending: jobs that may run or wait; more are refused.
    """

    def __init__(self, path: Path, processes: int, max_pending: int) -> None:
        self._path = path
        self._processes = processes or len(os.sched_getaffinity(0))
        self._max_pending = max_pending
        self._pending = 0
        self._executor = self._new_executor()
        self._ready: list[Future[str]] = []

    def launch(self) -> None:
        """Begin to start every process; `start` waits for them."""
        self._ready = [self._executor.submit(ready) for _ in range(self._processes)]

    @property
    def pending(self) -> int:
        """Jobs that run or wait."""
        return self._pending

    async def start(self) -> None:
        """Wait until every process has loaded its processors.

        Raises:
            InternalError: they cannot be loaded.
        """
        if not self._ready:
            self.launch()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                failures = await asyncio.gather(*map(asyncio.wrap_future, self._ready))
        except (BrokenProcessPool, TimeoutError) as error:
            raise InternalError(f"the media processes did not start: {error}") from None
        for failure in filter(None, failures):
            raise InternalError(f"the media processes did not start: {failure}")

    async def run(self, job: MediaJob, deadline: Deadline) -> ProcessedItem:
        """Process one medium.

        Raises:
            InvalidRequest: it cannot be honoured.
            Overloaded: too many wait already.
            DeadlineExceeded, Unavailable: the processes died twice.
        """
        if self._pending >= self._max_pending:
            raise Overloaded("too many media wait to be processed", None, "render", (), 1.0)
        self._pending += 1
        try:
            for _ in range(_ATTEMPTS):
                executor = self._executor
                try:
                    return await self._once(executor, job, deadline)
                except BrokenProcessPool:
                    self._replace(executor)
        finally:
            self._pending -= 1
        raise Unavailable("a media process died", None, "render")

    async def stop(self) -> None:
        """End the processes; jobs that have not begun are dropped."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    def _new_executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=initialise,
            initargs=(str(self._path),),
        )

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        if self._executor is broken:
            self._executor = self._new_executor()
            broken.shutdown(wait=False)

    async def _once(
        self, executor: ProcessPoolExecutor, job: MediaJob, deadline: Deadline
    ) -> ProcessedItem:
        limit = deadline.remaining("render")
        future = executor.submit(process, job)
        try:
            async with asyncio.timeout(limit):
                result = await asyncio.wrap_future(future)
        except TimeoutError:
            self._discard(future)
            raise DeadlineExceeded("the media took too long", None, "render") from None
        except asyncio.CancelledError:
            self._discard(future)
            raise
        return ProcessedItem(result.mm_hash, _take(result), result.metadata, result.runs)

    def _discard(self, future: Future[MediaResult]) -> None:
        """Free the segment of a result that nobody waits for."""
        if not future.cancel():
            future.add_done_callback(_drop)


def _take(result: MediaResult) -> bytes:
    segment = SharedMemory(result.segment)
    try:
        return bytes((segment.buf or b"")[: result.nbytes])
    finally:
        segment.close()
        segment.unlink()


def _drop(future: Future[MediaResult]) -> None:
    if not future.cancelled() and future.exception() is None:
        _take(future.result())
