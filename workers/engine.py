"""The thread that computes: steps of the decoder and batches of the vision tower.

Who calls what: the event loop's side submits, reports embeddings and blocks, aborts; all of that
travels as commands through one queue. This thread alone touches the scheduler, the runner and the
tower. What a step brought goes back to the event loop in one call per step, to the request's sink.
With nothing to do the thread sleeps on its queue.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from protocol.errors import InternalError, TriptychError
from protocol.generate import TokenLogprob
from telemetry.workers import WorkerMetrics
from workers.runner import ModelRunner, Prompt
from workers.scheduler import Scheduler
from workers.step import (
    BlocksReady,
    Event,
    MediaMissing,
    PrefillDone,
    Step,
    TokenSampled,
    WorkDone,
)
from workers.work import Finish, Work

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    """A choice has a new token."""

    choice: int
    token: int
    logprob: TokenLogprob | None
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class Allocated:
    """The blocks for keys and values from elsewhere; fill them, then call `kv_loaded`."""

    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A prefill is over; its blocks, if any, are kept until `release`."""

    blocks: list[int]


@dataclass(frozen=True, slots=True)
class ItemMissing:
    """The request cannot go on without this item, whose loading failed."""

    index: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not compute the request."""

    error: TriptychError


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more comes. `cached_tokens` of the prompt came from the prefix cache."""

    cached_tokens: int = 0


Message = Token | Allocated | Pinned | ItemMissing | Failed | Finished
Sink = Callable[[list[Message]], None]


class EncoderBatches(Protocol):
    """What the thread asks of the encoder: a batch at a time."""

    def run_batch(self) -> bool:
        """Encode a batch; False where nothing waits."""
        ...


class Engine:
    """One model's thread.

    Args:
        loop: where sinks are called.
        scheduler, runner: of the decoder, None where this worker has none.
        metrics: of this worker.
        threads: torch threads, 0 for torch's default.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scheduler: Scheduler | None,
        runner: ModelRunner | None,
        metrics: WorkerMetrics,
        threads: int = 0,
    ) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self.runner = runner
        self._metrics = metrics
        self._threads = threads
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sinks: dict[int, Sink] = {}
        self._outbox: dict[int, list[Message]] = {}
        self._thread = threading.Thread(target=self._run, name="triptych-model", daemon=True)
        self.encoder: EncoderBatches | None = None
        """Of the vision tower; set before `start`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called in the event loop after load changed."""

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; requests that still run get no more messages."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- from the event loop -----------------------------------------------------------------

    def submit(self, work: Work, prompt: Prompt, sink: Sink) -> None:
        """Queue a request; its messages go to `sink`, in the event loop."""

        def command() -> None:
            scheduler, runner = self._decoder()
            runner.add(work.id, prompt)
            self._sinks[work.id] = sink
            scheduler.add(work)

        self._commands.put(command)

    def media_ready(self, work_id: int, index: int, rows: torch.Tensor) -> None:
        """An item's embedding is here: [rows, embedding_width]."""

        def command() -> None:
            scheduler, runner = self._decoder()
            if runner.set_embedding(work_id, index, rows):
                scheduler.media_ready(work_id, index)

        self._commands.put(command)

    def media_failed(self, work_id: int, index: int) -> None:
        """An item's embedding cannot be had."""
        self._commands.put(lambda: self._take(self._decoder()[0].media_failed(work_id, index)))

    def kv_loaded(self, work_id: int) -> None:
        """The blocks of an `Allocated` are filled."""
        self._commands.put(lambda: self._take(self._decoder()[0].loaded(work_id)))

    def abort(self, work_id: int, choice: int | None = None) -> None:
        """End a request, or one choice of it; unknown ids are ignored."""
        self._commands.put(lambda: self._take(self._decoder()[0].abort(work_id, choice)))

    def release(self, work_id: int) -> None:
        """Free the blocks of a finished prefill; unknown ids are ignored."""
        self._commands.put(lambda: self._decoder()[0].release(work_id))

    async def call(self, work: Callable[[], None]) -> None:
        """Do something between two steps, and wait until it is done; raises what it raises."""
        done: asyncio.Future[None] = self._loop.create_future()

        def command() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                self._loop.call_soon_threadsafe(_settle, done, error)
            else:
                self._loop.call_soon_threadsafe(_settle, done, None)

        self._commands.put(command)
        await done

    def wake(self) -> None:
        """The encoder has work."""
        self._commands.put(_nothing)

    # --- in the thread -----------------------------------------------------------------------

    def _decoder(self) -> tuple[Scheduler, ModelRunner]:
        if self._scheduler is None or self.runner is None:
            raise RuntimeError("this worker has no language model")
        return self._scheduler, self.runner

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        busy = False
        while True:
            if not self._drain_commands(block=not busy):
                return
            busy = False
            try:
                if self.encoder is not None:
                    busy |= self.encoder.run_batch()
                if self._scheduler is not None:
                    busy |= self._step()
            except Exception:  # noqa: BLE001 - the thread outlives any request
                _log.exception("the model's thread failed outside a step")
                self._fail_all()
            self._flush()

    def _drain_commands(self, *, block: bool) -> bool:
        """Do what was asked; False when told to stop."""
        try:
            command = self._commands.get(block=block)
            while True:
                if command is None:
                    return False
                try:
                    command()
                except Exception:  # noqa: BLE001 - the thread outlives any request
                    _log.exception("a command to the model's thread failed")
                command = self._commands.get_nowait()
        except queue.Empty:
            return True

    def _step(self) -> bool:
        """Schedule and compute; False where there was nothing to do."""
        scheduler, runner = self._decoder()
        step, events = scheduler.schedule()
        self._take(events)
        if step.empty:
            return False
        started = time.perf_counter()
        try:
            tokens, logprobs = runner.run(step)
        except Exception as error:  # noqa: BLE001 - the thread outlives any request
            self._fail_step(step, error)
            return True
        self._take(scheduler.complete(step, tokens), logprobs)
        self._metrics.step(
            time.perf_counter() - started,
            sum(chunk.count for chunk in step.chunks),
            len(tokens),
            len(step.swap_out),
        )
        return True

    def _fail_step(self, step: Step, error: Exception) -> None:
        """One step could not be computed: its requests end, the others go on."""
        _log.exception("a step failed", exc_info=error)
        scheduler, _ = self._decoder()
        sequences = [chunk.sequence for chunk in step.chunks]
        sequences += [sequence for sequence, _ in step.swap_in + step.swap_out]
        for work_id in {sequence.work.id for sequence in sequences}:
            self._post(work_id, Failed(InternalError("the model could not compute the request")))
            self._take(scheduler.abort(work_id))

    def _fail_all(self) -> None:
        """Nobody knows whose fault it was: all requests end, and their readers abort them."""
        for work_id in self._sinks:
            self._post(work_id, Failed(InternalError("the engine could not go on")))

    def _take(self, events: list[Event], logprobs: list[TokenLogprob | None] | None = None) -> None:
        """Turn what the scheduler says into messages."""
        for event in events:
            match event:
                case TokenSampled(work, choice, token, finish, draw):
                    entry = logprobs[draw] if logprobs else None
                    self._post(work.id, Token(choice, token, entry, finish))
                case BlocksReady(work, blocks):
                    self._post(work.id, Allocated(blocks))
                case PrefillDone(work, blocks):
                    self._post(work.id, Pinned(blocks))
                case MediaMissing(work, index):
                    self._post(work.id, ItemMissing(index))
                case WorkDone(work):
                    self._metrics.cached_tokens.inc(work.cached_tokens)
                    self._post(work.id, Finished(work.cached_tokens))
                    self._decoder()[1].forget(work.id)

    def _post(self, work_id: int, message: Message) -> None:
        self._outbox.setdefault(work_id, []).append(message)

    def _flush(self) -> None:
        """Hand the messages over to the event loop, once per step."""
        batch = []
        for work_id, messages in self._outbox.items():
            last = isinstance(messages[-1], Finished)
            sink = self._sinks.pop(work_id, None) if last else self._sinks.get(work_id)
            if sink is not None:
                batch.append((sink, messages))
        self._outbox = {}
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            _log.debug("the event loop is closed")

    def _deliver(self, batch: list[tuple[Sink, list[Message]]]) -> None:
        for sink, messages in batch:
            sink(messages)
        self.on_change()


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _nothing() -> None:
    """Wakes the thread."""
