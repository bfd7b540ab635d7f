"""Decides what each step computes: continuous batching, chunked prefill, KV blocks, preemption.

A pure state machine: no torch, no clock, no I/O. The engine's thread calls `schedule`, computes
the step, and reports with `complete`. Between the two nothing else is called.

A step serves, in this order: sequences that need one token (they stream), chunks of prompts that
were begun, swapped-out sequences, new requests; each group oldest first. A prompt is admitted
only when blocks for all of it are free, so prefill never runs out; when decoding needs a block and
none is free, the youngest running sequence is swapped out to host memory and comes back later,
with the same keys and values.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence

from workers.kv_cache import BlockPool, OutOfBlocks
from workers.step import (
    BlocksReady,
    Chunk,
    Event,
    MediaMissing,
    PrefillDone,
    Step,
    TokenSampled,
    WorkDone,
)
from workers.work import SequenceState, State, Work


class Scheduler:
    """The queue, the running sequences and their blocks.

    Args:
        pool: the KV blocks.
        block_size: tokens per block.
        max_seqs: choices that run at once.
        max_tokens: tokens of one step.
        prefix_caching: look for and leave shared prefixes.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        max_seqs: int,
        max_tokens: int,
        *,
        prefix_caching: bool = True,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_seqs = max_seqs
        self._max_tokens = max_tokens
        self._prefix_caching = prefix_caching
        self._works: dict[int, Work] = {}
        self._waiting: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []
        self._swapped: deque[SequenceState] = deque()
        self._pinned: dict[int, list[int]] = {}
        self._events: list[Event] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._swapped)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_pinned(self) -> int:
        """Prefilled requests whose blocks nobody has fetched yet."""
        return len(self._pinned)

    @property
    def oldest_waiting(self) -> float | None:
        """Arrival of the request that has waited longest, None where none waits.

        May be read from other threads.
        """
        try:
            return self._waiting[0].work.arrived
        except IndexError:
            return None

    # --- stimuli -----------------------------------------------------------------------------

    def add(self, work: Work) -> None:
        """Queue a request."""
        sequence = SequenceState(work, work.choices[0], list(work.tokens))
        work.sequences = [sequence]
        self._works[work.id] = work
        self._waiting.append(sequence)

    def media_ready(self, work_id: int, index: int) -> None:
        """The runner has the embedding of an item; unknown requests are ignored."""
        if (work := self._works.get(work_id)) is not None:
            work.media[index].ready = True

    def media_failed(self, work_id: int, index: int) -> list[Event]:
        """An embedding could not be had: fatal unless the prefix cache makes it unneeded."""
        work = self._works.get(work_id)
        if work is None:
            return []
        span = work.media[index]
        span.failed = True
        sequence = work.sequences[0]
        if sequence.state is State.WAITING:
            known = len(self._cached_prefix(sequence)) * self._block_size
        else:
            known = sequence.computed
        if known < span.end:
            self._fail(work, index)
        return self._take_events()

    def loaded(self, work_id: int) -> list[Event]:
        """The blocks of a `BlocksReady` are filled: its choices go on after their first tokens."""
        work = self._works.get(work_id)
        if work is None or work.first_tokens is None:
            return []
        first = work.sequences[0]
        first.computed = len(first.tokens)
        self._running.remove(first)
        self._part(first, list(zip(work.choices, work.first_tokens, strict=True)), first_draw=None)
        self._pool.release(first.blocks)
        return self._take_events()

    def abort(self, work_id: int, choice: int | None = None) -> list[Event]:
        """End a request, or one of its choices, and free what it holds; unknown ids are ignored."""
        work = self._works.get(work_id)
        for sequence in list(work.sequences) if work else []:
            if choice is None or (sequence.forked and sequence.choice == choice):
                self._finish(sequence)
        return self._take_events()

    def release(self, work_id: int) -> None:
        """Free the blocks of a finished prefill; unknown ids are ignored."""
        blocks = self._pinned.pop(work_id, None)
        if blocks is not None:
            self._pool.release(blocks)

    # --- a step ------------------------------------------------------------------------------

    def schedule(self) -> tuple[Step, list[Event]]:
        """What to compute next, and what became known while deciding."""
        step = Step()
        budget = self._max_tokens
        for sequence in list(self._running):
            if budget and sequence.state is State.RUNNING and sequence.pending == 1:
                budget -= self._continue(step, sequence, budget)
        for sequence in list(self._running):
            if budget and sequence.state is State.RUNNING and sequence.pending > 1:
                budget -= self._continue(step, sequence, budget)
        if not step.swap_out:
            self._swap_in(step)
            for sequence in self._admit():
                budget -= self._continue(step, sequence, budget)
                if budget <= 0:
                    break
        return step, self._take_events()

    def complete(self, step: Step, sampled: Sequence[int]) -> list[Event]:
        """A step was computed.

        Args:
            step: what `schedule` gave.
            sampled: a token per draw, in the order of the chunks and of their draws.
        """
        draw = 0
        for chunk in step.chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.count
            if self._prefix_caching and sequence.work.cacheable:
                self._register(sequence)
            if not chunk.draws:
                continue
            tokens = sampled[draw : draw + len(chunk.draws)]
            if sequence.forked:
                self._append(sequence, tokens[0], draw)
            else:
                self._first_tokens(sequence, list(zip(chunk.draws, tokens, strict=True)), draw)
            draw += len(chunk.draws)
        return self._take_events()

    # --- inside ------------------------------------------------------------------------------

    def _continue(self, step: Step, sequence: SequenceState, budget: int) -> int:
        """Plan the next tokens of a running sequence; returns how many."""
        count = min(sequence.pending, budget, self._until_missing(sequence))
        if count <= 0 or not self._make_writable(step, sequence, sequence.computed + count):
            return 0
        draws: Sequence[int] = ()
        if sequence.computed + count == len(sequence.tokens):
            draws = (sequence.choice,) if sequence.forked else sequence.work.choices
        step.chunks.append(Chunk(sequence, sequence.computed, count, draws))
        return count

    def _until_missing(self, sequence: SequenceState) -> int:
        """Tokens before the next item whose embedding is not here yet."""
        for index, span in enumerate(sequence.work.media):
            if span.ready or span.end <= sequence.computed:
                continue
            if span.failed:
                self._fail(sequence.work, index)
                return 0
            return max(0, span.offset - sequence.computed)
        return sequence.pending

    def _make_writable(self, step: Step, sequence: SequenceState, end: int) -> bool:
        """Own every block that tokens [computed, end) go to; may swap out younger sequences."""
        first = sequence.computed // self._block_size
        needed = -(-end // self._block_size)
        while True:
            shared = first < len(sequence.blocks) and self._pool.is_shared(sequence.blocks[first])
            missing = needed - len(sequence.blocks) + shared
            if missing <= 0:
                return True
            try:
                fresh = self._pool.allocate(missing)
            except OutOfBlocks:
                victim = self._running[-1]
                for victim in reversed(self._running):
                    if victim.state is State.RUNNING:
                        break
                self._swap_out(step, victim)
                if victim is sequence:
                    return False
                continue
            if shared:
                source, target = sequence.blocks[first], fresh.pop()
                step.copies.append((source, target))
                self._pool.release([source])
                sequence.blocks[first] = target
            sequence.blocks += fresh
            return True

    def _swap_out(self, step: Step, victim: SequenceState) -> None:
        step.swap_out.append((victim, victim.blocks))
        self._pool.release(victim.blocks)
        victim.blocks = []
        victim.state = State.SWAPPED
        self._running.remove(victim)
        self._swapped.appendleft(victim)

    def _swap_in(self, step: Step) -> None:
        while self._swapped and len(self._running) < self._max_seqs:
            sequence = self._swapped[0]
            count = -(-len(sequence.tokens) // self._block_size)
            if count + bool(self._running) > self._pool.num_free:
                return
            self._swapped.popleft()
            sequence.blocks = self._pool.allocate(count)
            held = -(-sequence.computed // self._block_size)
            step.swap_in.append((sequence, sequence.blocks[:held]))
            sequence.state = State.RUNNING
            insort(self._running, sequence, key=lambda s: s.order)

    def _admit(self) -> Iterator[SequenceState]:
        """Give waiting requests their blocks, while there are any; yields those that can run."""
        while self._waiting and not self._swapped:
            sequence = self._waiting[0]
            work = sequence.work
            if self._running and len(self._running) + len(work.choices) > self._max_seqs:
                return
            prefix = self._cached_prefix(sequence)
            count = -(-len(sequence.tokens) // self._block_size) - len(prefix)
            if count + self._pool.num_free_among(prefix) > self._pool.num_free:
                return
            self._waiting.popleft()
            self._pool.share(prefix)
            sequence.blocks = prefix + self._pool.allocate(count)
            insort(self._running, sequence, key=lambda s: s.order)
            if work.first_tokens is not None:
                sequence.state = State.LOADING
                self._events.append(BlocksReady(work, list(sequence.blocks)))
                continue
            sequence.state = State.RUNNING
            sequence.computed = sequence.cached = len(prefix) * self._block_size
            sequence.registered = len(prefix)
            work.cached_tokens = sequence.cached
            yield sequence

    def _cached_prefix(self, sequence: SequenceState) -> list[int]:
        """Blocks that hold a beginning of the prompt; its last token is always computed."""
        work = sequence.work
        if not (self._prefix_caching and work.cacheable and work.first_tokens is None):
            return []
        count = (len(sequence.tokens) - 1) // self._block_size
        return self._pool.match(sequence.hash_blocks(count, self._block_size))

    def _register(self, sequence: SequenceState) -> None:
        full = sequence.computed // self._block_size
        if full <= sequence.registered:
            return
        hashes = sequence.hash_blocks(full, self._block_size)
        for index in range(sequence.registered, full):
            self._pool.register(sequence.blocks[index], hashes[index])
        sequence.registered = full

    def _first_tokens(
        self, sequence: SequenceState, tokens: list[tuple[int, int]], draw: int
    ) -> None:
        work = sequence.work
        if work.goal == "generate":
            self._running.remove(sequence)
            self._part(sequence, tokens, first_draw=draw)
            self._pool.release(sequence.blocks)
            return
        over = True
        for offset, (choice, token) in enumerate(tokens):
            finish = work.stop.check(token, sequence.num_outputs + 1, len(sequence.tokens) + 1)
            over &= finish is not None
            self._events.append(TokenSampled(work, choice, token, finish, draw + offset))
        blocks: list[int] = []
        if not over:
            blocks = list(sequence.blocks)
            self._pool.share(blocks)
            self._pinned[work.id] = blocks
        self._events.append(PrefillDone(work, blocks))
        self._finish(sequence)

    def _part(
        self, sequence: SequenceState, tokens: list[tuple[int, int]], first_draw: int | None
    ) -> None:
        """The choices go separate ways from their first tokens on, sharing the past's blocks.

        Without `first_draw` the tokens were sampled and told elsewhere. The caller releases the
        blocks of `sequence`, which is no choice any more.
        """
        work = sequence.work
        sequence.state = State.RUNNING
        forks = [sequence.fork(choice) for choice, _ in tokens]
        sequence.state = State.FINISHED
        work.sequences = list(forks)
        for fork in forks:
            self._pool.share(fork.blocks)
            insort(self._running, fork, key=lambda s: s.order)
        for offset, (fork, (_, token)) in enumerate(zip(forks, tokens, strict=True)):
            if first_draw is not None:
                self._append(fork, token, first_draw + offset)
                continue
            fork.tokens.append(token)
            if work.stop.check(token, fork.num_outputs, len(fork.tokens)):
                self._finish(fork)

    def _append(self, sequence: SequenceState, token: int, draw: int) -> None:
        work = sequence.work
        sequence.tokens.append(token)
        finish = work.stop.check(token, sequence.num_outputs, len(sequence.tokens))
        self._events.append(TokenSampled(work, sequence.choice, token, finish, draw))
        if finish is not None:
            self._finish(sequence)

    def _finish(self, sequence: SequenceState) -> None:
        """Take a sequence out of wherever it is and free its blocks."""
        if sequence.state in (State.RUNNING, State.LOADING):
            self._running.remove(sequence)
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is State.SWAPPED:
            self._swapped.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.state = State.FINISHED
        sequence.work.sequences.remove(sequence)
        if not sequence.work.sequences:
            self._done(sequence.work)

    def _fail(self, work: Work, index: int) -> None:
        self._events.append(MediaMissing(work, index))
        for sequence in list(work.sequences):
            self._finish(sequence)

    def _done(self, work: Work) -> None:
        if self._works.pop(work.id, None) is not None:
            self._events.append(WorkDone(work))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
