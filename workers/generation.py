"""One generate request on a worker, from its checks to its last token.

`Generator` is what the gRPC and HTTP services share. A running request owns its loads of
embeddings and its place in the engine; leaving its context gives both back, whatever happened.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import torch

from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    TriptychError,
    Unavailable,
)
from protocol.generate import FinishReason, GenerateRequest, Logprobs, Usage
from protocol.rpc import Prefilled, TokenDelta
from protocol.transfer import KvHandoff, kv_params
from telemetry.workers import WorkerMetrics
from workers.adapters.base import Adapter
from workers.admission import Admitted, Limits, admit
from workers.engine import (
    Allocated,
    Engine,
    Failed,
    Finished,
    ItemMissing,
    Message,
    Pinned,
    Token,
)
from workers.handoff import KvTransfer, handoff_of
from workers.kv_buffer import KvBuffer
from workers.media import MediaItem, MediaLoader
from workers.publisher import raise_together
from workers.runner import Prompt
from workers.stream import Aborted, WorkStream
from workers.work import MediaSpan, Work


@dataclass(slots=True, eq=False)
class Running:
    """A request that is in the engine.

    Attributes:
        loads: a task per item of the prompt.
        open: choices that are not over.
        offered: whether the KV blocks were offered to another replica.
        generated: tokens of all choices so far, resumed and handed-over ones included.
    """

    work: Work
    admitted: Admitted
    prompt: Prompt
    handoff: KvHandoff | None
    stream: WorkStream = field(default_factory=WorkStream)
    loads: list[asyncio.Task[torch.Tensor]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    generated: int = 0
    offered: bool = False

    @property
    def usage(self) -> Usage:
        return Usage.of(len(self.admitted.request.token_ids), self.generated)


class Generator:
    """Runs generate requests on the engine.

    Args:
        adapter: of the model.
        engine: with a language model.
        media: brings embeddings.
        kv: the cache.
        transfer: moves KV blocks.
        limits: what requests may ask for.
        max_queued: requests that may be in the engine beyond those that run.
        metrics: of this worker.
    """

    def __init__(
        self,
        adapter: Adapter,
        engine: Engine,
        media: MediaLoader,
        kv: KvBuffer,
        transfer: KvTransfer,
        limits: Limits,
        max_queued: int,
        metrics: WorkerMetrics,
    ) -> None:
        self._adapter = adapter
        self._engine = engine
        self._media = media
        self._kv = kv
        self._transfer = transfer
        self._limits = limits
        self._max_open = max_queued + limits.max_seqs
        self._metrics = metrics
        self._ids = itertools.count(1)
        self._running: dict[int, Running] = {}
        self.draining = False

    @property
    def open(self) -> int:
        """Requests that are not over."""
        return len(self._running)

    async def prefill(
        self, request: GenerateRequest, deadline: Deadline, lease_s: float
    ) -> Prefilled:
        """Compute the prompt, sample the first token of each choice, offer the KV blocks.

        Args:
            request: with pixels, or metadata and `ec_transfer_params`.
            deadline: of the whole request.
            lease_s: how long the blocks wait to be fetched.
        """
        async with self._enter(request, deadline, prefill=True) as running:
            deltas: list[TokenDelta] = []
            first: list[int] = []
            while True:
                for message in await self.read(running, deadline):
                    if isinstance(message, Token):
                        running.generated += 1
                        first.append(message.token)
                        deltas.append(_delta([message]))
                    elif isinstance(message, Pinned):
                        params = None
                        if message.blocks:
                            params = await self._offer(
                                running, message.blocks, tuple(first), lease_s
                            )
                        return Prefilled(deltas, params, running.usage)

    @asynccontextmanager
    async def run(self, request: GenerateRequest, deadline: Deadline) -> AsyncIterator[Run]:
        """A request in generation; its deltas are read in the context, whose end aborts it.

        With KV blocks in the request they begin after the first tokens, which prefill told.
        """
        async with self._enter(request, deadline, prefill=False) as running:
            yield Run(self, running, deadline)

    def abort(self, request_id: str) -> None:
        """End every request of this id with finish_reason `abort`; unknown ids are ignored."""
        for running in list(self._running.values()):
            if running.admitted.request.request_id == request_id:
                self._engine.abort(running.work.id)
                running.stream.put([Aborted()])

    # --- parts -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _enter(
        self, request: GenerateRequest, deadline: Deadline, *, prefill: bool
    ) -> AsyncIterator[Running]:
        if self.draining:
            raise Unavailable("this worker is draining")
        if len(self._running) >= self._max_open:
            raise Overloaded("this worker's queue is full", retry_after=1.0)
        admitted = admit(request, self._adapter.shape, self._limits)
        handoff = None if prefill else handoff_of(request, self._kv)
        items = [] if handoff else await self._media.prepare(request, deadline)
        running = self._place(admitted, items, handoff, prefill=prefill)
        self._running[running.work.id] = running
        try:
            self._engine.submit(running.work, running.prompt, running.stream.put)
            salt = request.cache_salt or ""
            running.loads = [
                asyncio.create_task(self._load(running, index, item, salt, deadline))
                for index, item in enumerate(items)
            ]
            yield running
        finally:
            del self._running[running.work.id]
            self._engine.abort(running.work.id)
            if prefill and not running.offered:
                self._engine.release(running.work.id)
            for load in running.loads:
                load.cancel()
            await asyncio.gather(*running.loads, return_exceptions=True)

    def _place(
        self,
        admitted: Admitted,
        items: list[MediaItem],
        handoff: KvHandoff | None,
        *,
        prefill: bool,
    ) -> Running:
        """The request as the scheduler and the runner see it."""
        request = admitted.request
        positions, delta = None, 0
        if handoff is not None:
            delta = handoff.position_delta
        elif items:
            positions, delta = self._adapter.positions(
                len(request.token_ids), [(item.ref.placeholder, item.layout) for item in items]
            )
        spans = [
            MediaSpan(item.ref.mm_hash, item.ref.placeholder.offset, item.ref.placeholder.length)
            for item in items
        ]
        work = Work(
            next(self._ids),
            admitted.tokens,
            len(request.token_ids),
            admitted.stop,
            spans,
            range(admitted.params.n),
            request.cache_salt or "",
            "prefill" if prefill else "generate",
            handoff.first_tokens if handoff else None,
            cacheable=handoff is None and not admitted.params.skip_reading_prefix_cache,
            arrived=time.monotonic(),
        )
        prompt = Prompt(
            admitted.params,
            admitted.seed,
            positions,
            delta,
            [item.ref.placeholder for item in items],
            [None] * len(items),
            admitted.banned,
        )
        running = Running(work, admitted, prompt, handoff)
        running.generated = len(admitted.resumed) * admitted.params.n
        running.open = set(work.choices)
        if handoff is not None:
            running.generated += len(handoff.first_tokens)
            for choice, token in zip(work.choices, handoff.first_tokens, strict=True):
                outputs = len(admitted.resumed) + 1
                if admitted.stop.check(token, outputs, len(work.tokens) + 1):
                    running.open.discard(choice)
        return running

    async def _load(
        self, running: Running, index: int, item: MediaItem, salt: str, deadline: Deadline
    ) -> torch.Tensor:
        try:
            rows = await self._media.load(item, salt, deadline)
        except TriptychError:
            self._engine.media_failed(running.work.id, index)
            raise
        self._engine.media_ready(running.work.id, index, rows)
        return rows

    async def read(self, running: Running, deadline: Deadline) -> list[Message | Aborted]:
        """What the engine says next.

        Raises:
            TriptychError: the request failed.
        """
        try:
            async with asyncio.timeout(deadline.remaining()):
                messages = await running.stream.get()
        except TimeoutError:
            raise DeadlineExceeded("the request's time is over") from None
        for message in messages:
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, ItemMissing):
                await self._raise_missing(running, message.index)
        return messages

    async def _raise_missing(self, running: Running, index: int) -> None:
        """Raise the failure of an item, naming all items that have failed by now."""
        await asyncio.wait([running.loads[index]])
        results = [
            load.exception() or load.result()
            for load in running.loads
            if load.done() and not load.cancelled()
        ]
        try:
            raise_together(results)
        except TriptychError as error:
            error.stage = error.stage or "prefill"
            raise
        raise InternalError("an item is missing and nobody knows why")

    async def _offer(
        self, running: Running, blocks: list[int], first: tuple[int, ...], lease_s: float
    ) -> dict[str, object]:
        source = await self._transfer.offer(running.work.id, blocks, lease_s)
        running.offered = True
        return kv_params(
            KvHandoff(
                source,
                len(running.work.tokens),
                self._kv.block_size,
                first,
                running.prompt.delta,
            )
        )

    async def adopt(self, running: Running, blocks: list[int], deadline: Deadline) -> None:
        """Fill a request's blocks with the keys and values that it brings."""
        if running.handoff is None:
            raise InvalidRequest("there is nothing to adopt", "kv_transfer_params")
        await self._transfer.fetch(running.handoff.source, blocks, deadline)
        self._engine.kv_loaded(running.work.id)

    def stop_choice(self, running: Running, choice: int) -> None:
        """End one choice of a running request."""
        running.open.discard(choice)
        self._engine.abort(running.work.id, choice)


class Run:
    """The deltas of a running request."""

    def __init__(self, generator: Generator, running: Running, deadline: Deadline) -> None:
        self._generator = generator
        self._running = running
        self._deadline = deadline

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._running.usage

    def stop(self, choice: int) -> None:
        """End one choice early: the reader has seen enough of it."""
        self._generator.stop_choice(self._running, choice)

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Deltas in order; the last one carries the usage."""
        running = self._running
        over = False
        while not over:
            messages = await self._generator.read(running, self._deadline)
            for message in messages:
                if isinstance(message, Allocated):
                    await self._generator.adopt(running, message.blocks, self._deadline)
            deltas = self._tokens(messages)
            over = any(isinstance(message, Finished | Aborted) for message in messages)
            if any(isinstance(message, Aborted) for message in messages):
                deltas += [TokenDelta(index=c, finish_reason="abort") for c in sorted(running.open)]
            if over:
                last = deltas.pop() if deltas else TokenDelta(index=running.work.choices[0])
                deltas.append(msgspec.structs.replace(last, usage=running.usage))
            for delta in deltas:
                yield delta

    def _tokens(self, messages: list[Message | Aborted]) -> list[TokenDelta]:
        """A delta per choice that has new tokens and was not stopped."""
        running = self._running
        tokens: dict[int, list[Token]] = {}
        for message in messages:
            if isinstance(message, Token) and message.choice in running.open:
                tokens.setdefault(message.choice, []).append(message)
                if message.finish is not None:
                    running.open.discard(message.choice)
        running.generated += sum(map(len, tokens.values()))
        return [_delta(batch) for batch in tokens.values()]


def _delta(tokens: list[Token]) -> TokenDelta:
    entries = [token.logprob for token in tokens if token.logprob is not None]
    reason: FinishReason | None = None
    detail: int | str | None = None
    if tokens[-1].finish is not None:
        reason, detail = tokens[-1].finish
    return TokenDelta(
        index=tokens[0].choice,
        token_ids=[token.token for token in tokens],
        logprobs=Logprobs(entries) if entries else None,
        finish_reason=reason,
        stop_reason=detail,
    )
