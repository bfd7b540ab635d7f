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

import msgspec

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, Overloaded, Unavailable
from protocol.generate import GenerateRequest, Usage
from protocol.rpc import Prefilled, TokenDelta
from protocol.transfer import KvHandoff, kv_params
from workers.adapters.base import Adapter
from workers.admission import Admitted, Limits, admit
from workers.engine import Allocated, Engine, Finished, Pinned
from workers.grammar import PARAM, Constraint, Grammars
from workers.handoff import KvTransfer, handoff_of
from workers.kv_buffer import KvBuffer
from workers.media import MediaItem, MediaLoader
from workers.runner import Prompt
from workers.running import Running
from workers.stream import Aborted, Expired
from workers.work import MediaSpan, Work


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
        grammars: compiles the forms of answers, None where that cannot be had.
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
        grammars: Grammars | None = None,
    ) -> None:
        self._grammars = grammars
        self._adapter = adapter
        self._engine = engine
        self._media = media
        self._kv = kv
        self._transfer = transfer
        self._limits = limits
        self._max_open = max_queued + limits.max_seqs
        self._ids = itertools.count(1)
        self._running: dict[int, Running] = {}
        self._open = 0
        self.draining = False

    @property
    def open(self) -> int:
        """Requests that are not over."""
        return self._open

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
            while True:
                messages = await running.read()
                deltas += running.tokens(messages)
                for message in messages:
                    if isinstance(message, Aborted):
                        return Prefilled(deltas + running.aborted(), None, running.usage)
                    if isinstance(message, Pinned):
                        first = tuple(delta.token_ids[0] for delta in deltas)
                        params = None
                        if message.blocks:
                            params = await self._offer(running, message.blocks, first, lease_s)
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
                if not running.adopting:
                    self._engine.abort(running.work.id)
                running.stream.put([Aborted()])

    # --- parts -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _enter(
        self, request: GenerateRequest, deadline: Deadline, *, prefill: bool
    ) -> AsyncIterator[Running]:
        if self.draining:
            raise Unavailable("this worker is draining")
        if self._open >= self._max_open:
            raise Overloaded("this worker's queue is full", retry_after=1.0)
        self._open += 1
        try:
            async with self._submitted(request, deadline, prefill=prefill) as running:
                yield running
        finally:
            self._open -= 1

    @asynccontextmanager
    async def _submitted(
        self, request: GenerateRequest, deadline: Deadline, *, prefill: bool
    ) -> AsyncIterator[Running]:
        admitted = admit(request, self._adapter.shape, self._limits)
        constraints = await self._constraints(admitted)
        handoff = None if prefill else handoff_of(request, self._kv)
        items = [] if handoff else await self._media.prepare(request, deadline)
        running = self._place(admitted, items, handoff, constraints, prefill=prefill)
        # One timer per request: one per await of a token would cost as much as the token's way.
        expiry = asyncio.get_running_loop().call_later(
            deadline.remaining(), running.stream.put, (Expired(),)
        )
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
            expiry.cancel()
            del self._running[running.work.id]
            self._engine.abort(running.work.id)
            if prefill and not running.offered:
                self._engine.release(running.work.id)
            for load in running.loads:
                load.cancel()
            await asyncio.gather(*running.loads, return_exceptions=True)

    async def _constraints(self, admitted: Admitted) -> dict[int, Constraint]:
        params = admitted.params
        if params.structured_outputs is None:
            return {}
        if self._grammars is None:
            raise InvalidRequest(
                "structured_outputs is not supported by this worker: it needs the extra "
                "`structured`, tokenizer.json and an end-of-sequence token",
                PARAM,
            )
        request = admitted.request
        return await self._grammars.constraints(
            params.structured_outputs,
            range(params.n),
            None if request.reasoning_ended else request.reasoning_end,
        )

    def _place(
        self,
        admitted: Admitted,
        items: list[MediaItem],
        handoff: KvHandoff | None,
        constraints: dict[int, Constraint],
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
            constraints,
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
    ) -> None:
        try:
            rows = await self._media.load(item, salt, deadline)
        except Exception:
            self._engine.media_failed(running.work.id, index)
            raise
        self._engine.media_ready(running.work.id, index, rows)

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
        running.adopting = True
        try:
            await self._transfer.fetch(running.handoff.source, blocks, deadline)
        finally:
            running.adopting = False
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
            messages = await running.read()
            for message in messages:
                if isinstance(message, Allocated):
                    await self._generator.adopt(running, message.blocks, self._deadline)
            deltas = running.tokens(messages)
            if any(isinstance(message, Aborted) for message in messages):
                deltas += running.aborted()
            over = any(isinstance(message, Finished | Aborted) for message in messages)
            if over:
                last = deltas.pop() if deltas else TokenDelta(index=running.work.choices[0])
                deltas.append(msgspec.structs.replace(last, usage=running.usage))
            for delta in deltas:
                yield delta
