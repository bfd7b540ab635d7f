"""One request inside the engine: its prompt, its media, its choices. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Literal

from workers.kv_cache import BlockHash, block_hash, root_hash

StopReason = int | str | None
Finish = tuple[Literal["stop", "length", "abort"], StopReason]


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a choice ends.

    Attributes:
        max_tokens: outputs, resumed ones included.
        min_tokens: outputs before which no end-of-sequence or stop token counts.
        max_total: tokens of context.
        eos: ids that end quietly; empty where the request ignores them.
        stop: ids that end and are named as the reason.
    """

    max_tokens: int
    min_tokens: int = 0
    max_total: int = 1 << 30
    eos: frozenset[int] = frozenset()
    stop: frozenset[int] = frozenset()

    def check(self, token: int, outputs: int, total: int) -> Finish | None:
        """Whether a choice ends with `token`, its `outputs`-th of `total` tokens."""
        if outputs >= self.min_tokens:
            if token in self.eos:
                return "stop", None
            if token in self.stop:
                return "stop", token
        if outputs >= self.max_tokens or total >= self.max_total:
            return "length", None
        return None


@dataclass(slots=True)
class MediaSpan:
    """The placeholder of one item; `ready` once its embedding is with the runner."""

    mm_hash: str
    offset: int
    length: int
    ready: bool = False
    failed: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length


class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Work:
    """A request as the scheduler sees it.

    Attributes:
        id: unique in this engine; later ones have larger ids.
        tokens: the prompt, then the outputs it goes on after.
        num_prompt: how many of them are the prompt's own.
        media: in prompt order.
        stop: when its choices end.
        choices: the choice indices to sample, in order.
        cache_salt: prefixes are shared only under the same salt.
        goal: `prefill` ends with the first token of each choice and keeps the KV blocks.
        first_tokens: set where the KV of `tokens` comes from elsewhere: what was sampled after
            them, per choice.
        cacheable: whether its blocks may be found by others and its prefix looked up.
        arrived: seconds, on the caller's clock.
        cached_tokens: of the prompt, that the prefix cache held.
        sequences: its choices that are not over.
    """

    id: int
    tokens: list[int]
    num_prompt: int
    stop: StopRules
    media: list[MediaSpan] = field(default_factory=list)
    choices: Sequence[int] = (0,)
    cache_salt: str = ""
    goal: Literal["generate", "prefill"] = "generate"
    first_tokens: tuple[int, ...] | None = None
    cacheable: bool = True
    arrived: float = 0.0
    cached_tokens: int = 0
    sequences: list[SequenceState] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SequenceState:
    """One choice (before the first token: all choices) of a request.

    Attributes:
        choice: its index; the first one's until the choices part.
        tokens: prompt and outputs.
        computed: how many of them have keys and values in `blocks`.
        cached: how many of those came from the prefix cache.
        hashes: of the full blocks of `tokens`, as far as they were needed.
        registered: full blocks that the prefix cache knows.
        forked: whether the choices have parted.
    """

    work: Work
    choice: int
    tokens: list[int]
    computed: int = 0
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[BlockHash] = field(default_factory=list)
    registered: int = 0
    forked: bool = False
    state: State = State.WAITING

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.work.num_prompt

    @property
    def order(self) -> tuple[int, int]:
        """Older requests first, then lower choices."""
        return self.work.id, self.choice

    def hash_blocks(self, count: int, block_size: int) -> list[BlockHash]:
        """The hashes of the first `count` blocks, which are full."""
        while len(self.hashes) < count:
            start = len(self.hashes) * block_size
            end = start + block_size
            media = [
                (span.mm_hash, span.offset - start)
                for span in self.work.media
                if span.offset < end and span.end > start
            ]
            parent = self.hashes[-1] if self.hashes else root_hash(self.work.cache_salt)
            self.hashes.append(block_hash(parent, list(islice(self.tokens, start, end)), media))
        return self.hashes[:count]

    def fork(self, choice: int) -> SequenceState:
        """Another choice with the same past; the caller shares the blocks."""
        return SequenceState(
            self.work,
            choice,
            list(self.tokens),
            self.computed,
            self.cached,
            list(self.blocks),
            list(self.hashes),
            self.registered,
            True,
            self.state,
        )
