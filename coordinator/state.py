"""One frozen record per finished stage: what a request has become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.member import Member
from coordinator.receipt import Receipt
from coordinator.topology import Plan
from protocol.deadline import Deadline
from protocol.features import ItemRef
from protocol.generate import GenerateRequest, Usage
from protocol.rpc import RenderEndpoint, TokenDelta
from protocol.transfer import EcItem


@dataclass(frozen=True, slots=True)
class Admitted:
    """A body that was let in.

    Attributes:
        request_id: as the client sees it, and perhaps chose it.
        internal_id: as replicas see it: nobody else's, whatever the client chose.
        deadline: of the whole request.
        receipt: filled on the way.
        endpoint, body: what render is asked, kept until the end so that it can be asked again;
            None where the client rendered itself.
    """

    request_id: str
    internal_id: str
    deadline: Deadline
    receipt: Receipt
    endpoint: RenderEndpoint | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """One prompt ready to be encoded.

    Attributes:
        admitted: where it came from.
        number: which prompt of the body.
        request: tokens, features with handles or inline kwargs, sampling.
        origin: the render replica whose store holds the pixels; None for inline ones.
    """

    admitted: Admitted
    number: int
    request: GenerateRequest
    origin: Member | None = None

    @property
    def deadline(self) -> Deadline:
        return self.admitted.deadline

    @property
    def receipt(self) -> Receipt:
        return self.admitted.receipt

    @property
    def image_tokens(self) -> int:
        """Embedding rows of all items."""
        return sum(item.placeholder.rows for item in self.media)

    @property
    def media(self) -> list[ItemRef]:
        """The items, in prompt order, repeated ones included."""
        return self.request.features.items() if self.request.features is not None else []


@dataclass(frozen=True, slots=True)
class Encoded:
    """Where each distinct item's embedding is.

    Attributes:
        items: mm_hash -> descriptor of ours.
        foreign: mm_hash -> entry of a foreign connector.
        holders: mm_hash -> the encode replica that answered.
    """

    items: dict[str, EcItem] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)
    holders: dict[str, Member] = field(default_factory=dict)

    def add(self, mm_hash: str, holder: Member, item: EcItem | None, foreign: Any) -> None:
        """An item is there."""
        self.holders[mm_hash] = holder
        if item is not None:
            self.items[mm_hash] = item
        if foreign is not None:
            self.foreign[mm_hash] = foreign

    def drop(self, mm_hash: str) -> Member | None:
        """An item is not there after all; returns who was said to hold it."""
        self.items.pop(mm_hash, None)
        self.foreign.pop(mm_hash, None)
        return self.holders.pop(mm_hash, None)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt whose KV blocks are there.

    Attributes:
        plan: the cohort that decode must be of.
        request: what decode is sent, `kv_transfer_params` included.
        deltas: the first token of each choice.
        holder: the replica that holds the blocks.
        kv_key: of the blocks, to release them; "" for a foreign connector's.
        finished: every choice ended with its first token; there is nothing to decode.
    """

    plan: Plan
    request: GenerateRequest
    deltas: list[TokenDelta]
    holder: Member
    kv_key: str
    finished: bool
    usage: Usage
