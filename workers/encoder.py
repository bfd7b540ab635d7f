"""Batches of items for the vision tower.

`EncoderQueue.encode` is awaited in the event loop; the model's thread takes what waits, as many
items as fit the budget, and runs them at once, whichever requests they belong to.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from protocol.errors import InternalError, TransferError, TriptychError
from telemetry.workers import WorkerMetrics
from workers.adapters.base import EncoderInput, VisionTower

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    mm_hash: str
    item: EncoderInput
    future: asyncio.Future[torch.Tensor]


def batch_size(costs: Sequence[int], budget: int) -> int:
    """How many of the first jobs to run at once: at least one, together within the budget."""
    total = 0
    for count, cost in enumerate(costs):
        total += cost
        if total > budget:
            return max(1, count)
    return len(costs)


class EncoderQueue:
    """Items that wait for the tower.

    Args:
        loop: where `encode` is awaited.
        tower: the tower, called from the model's thread.
        budget: patches of one batch; a larger item runs alone.
        metrics: of this worker.
        wake: tells the model's thread that something waits.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tower: VisionTower,
        budget: int,
        metrics: WorkerMetrics,
        wake: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.tower = tower
        self._budget = budget
        self._metrics = metrics
        self._wake = wake
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    async def encode(self, mm_hash: str, item: EncoderInput) -> torch.Tensor:
        """The item's rows, [rows, embedding_width], finite.

        A first cancellation only withdraws an item that the tower does not have yet. Of others the
        rows are returned: they are paid for, and somebody will ask again.

        Raises:
            TransferError: `invalid_content`, the tower gave numbers that are not finite.
            InternalError: the tower failed.
        """
        job = _Job(mm_hash, item, self._loop.create_future())
        with self._lock:
            self._jobs.append(job)
        self._wake()
        try:
            return await asyncio.shield(job.future)
        except asyncio.CancelledError:
            if self._withdraw(job):
                raise
            return await job.future
        finally:
            job.future.cancel()

    def _withdraw(self, job: _Job) -> bool:
        """Take a job out of the queue; False where the tower has it."""
        with self._lock:
            waiting = job in self._jobs
            if waiting:
                self._jobs.remove(job)
        return waiting

    def run_batch(self) -> bool:
        """Encode a batch, in the model's thread; False where nothing waits."""
        batch = self._take()
        if not batch:
            return False
        started = time.perf_counter()
        results = self._encode(batch)
        self._metrics.encoder_seconds.observe(time.perf_counter() - started)
        self._metrics.encoded_items.inc(len(batch))
        try:
            self._loop.call_soon_threadsafe(_deliver, batch, results)
        except RuntimeError:
            _log.debug("the event loop is closed")
        return True

    def _take(self) -> list[_Job]:
        with self._lock:
            costs = [job.item.layout.patches for job in self._jobs]
            return [self._jobs.popleft() for _ in range(batch_size(costs, self._budget))]

    @torch.inference_mode()
    def _encode(self, batch: list[_Job]) -> list[torch.Tensor | TriptychError]:
        try:
            rows = self.tower.encode([job.item for job in batch])
            return [_checked(job, part.clone()) for job, part in zip(batch, rows, strict=True)]
        except Exception as error:  # noqa: BLE001 - the thread outlives any request
            if len(batch) > 1:  # find out whose fault it is
                return [result for job in batch for result in self._encode([job])]
            _log.exception("the vision tower failed", exc_info=error)
            return [InternalError("the item could not be encoded", items=(batch[0].mm_hash,))]


def _checked(job: _Job, rows: torch.Tensor) -> torch.Tensor | TriptychError:
    if bool(torch.isfinite(rows).all()):
        return rows
    return TransferError(
        "the encoder gave values that are not finite", "invalid_content", (job.mm_hash,)
    )


def _deliver(batch: list[_Job], results: list[torch.Tensor | TriptychError]) -> None:
    for job, result in zip(batch, results, strict=True):
        if job.future.done():
            continue
        if isinstance(result, TriptychError):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
