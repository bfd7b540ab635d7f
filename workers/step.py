"""What the scheduler decides and says: a step to compute, events about requests. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.work import Finish, SequenceState, Work


@dataclass(slots=True)
class Chunk:
    """Tokens [start, start + count) of a sequence, and the choices to sample after them."""

    sequence: SequenceState
    start: int
    count: int
    draws: Sequence[int] = ()


@dataclass(slots=True)
class Step:
    """What to compute: first swap out, then swap in, then copy blocks, then the chunks.

    Attributes:
        copies: (from, to) blocks; a sequence writes into a copy of a block that it shares.
        swap_out: sequences and the blocks that hold their keys and values until now.
        swap_in: sequences and the blocks that are to hold them again.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[SequenceState, list[int]]] = field(default_factory=list)
    swap_in: list[tuple[SequenceState, list[int]]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.chunks or self.swap_out or self.swap_in)


@dataclass(frozen=True, slots=True)
class TokenSampled:
    """A choice has a new token; `draw` counts the step's draws."""

    work: Work
    choice: int
    token: int
    finish: Finish | None
    draw: int


@dataclass(frozen=True, slots=True)
class BlocksReady:
    """Blocks are there for keys and values that come from elsewhere; then call `loaded`."""

    work: Work
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """A prefill has its first tokens; its blocks are kept until `release`, if any."""

    work: Work
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class MediaMissing:
    """A request cannot go on without an item that could not be had; it is gone."""

    work: Work
    index: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """No choice of a request runs any more."""

    work: Work


Event = TokenSampled | BlocksReady | PrefillDone | MediaMissing | WorkDone
