"""The calls between our own components, over gRPC with MessagePack bodies.

Each `Method` names its request and reply once; `serving.rpc_server` and `serving.rpc_client` are
driven by them. MessagePack of the same structs as the HTTP contract is used instead of protobuf
so that each message is stated once (docs/decisions/0003). Deadlines ride in gRPC's own timeout,
the cluster token in the `authorization` metadata, an error as `WireError` in the trailing
metadata `triptych-error-bin`.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from protocol.generate import FinishReason, GenerateRequest, Logprobs, Usage
from protocol.replica import Replica, ReplicaStatus
from protocol.transfer import EcItem

Req = TypeVar("Req")
Rep = TypeVar("Rep")

ERROR_METADATA = "triptych-error-bin"


class Method(Generic[Req, Rep]):
    """One call: its full gRPC name, its message types, and whether the reply is a stream."""

    def __init__(self, name: str, request: type[Req], reply: type[Rep], *, stream: bool) -> None:
        self.name = name
        self.request = request
        self.reply = reply
        self.stream = stream

    def __repr__(self) -> str:
        return f"Method({self.name})"


class Empty(msgspec.Struct, frozen=True):
    """No arguments, or nothing to say."""


RenderEndpoint = Literal["chat", "completions", "responses", "messages"]


class RenderCall(msgspec.Struct, frozen=True):
    """A client's body to be rendered.

    Attributes:
        endpoint: which request it is.
        body: the JSON as the client sent it.
        request_id: id to give the (first) request.
        publish: put processed pixels into render's store and answer handles, instead of inline.
        lease_s: how long the store keeps them unless released.
    """

    endpoint: RenderEndpoint
    body: bytes
    request_id: str
    publish: bool = True
    lease_s: float = 30.0


class Rendered(msgspec.Struct, frozen=True):
    """The prompts of a body, one per choice of prompt (chat has one)."""

    requests: list[GenerateRequest]


class ReleaseCall(msgspec.Struct, frozen=True):
    """What nobody will fetch any more; unknown keys and ids are ignored.

    Attributes:
        keys: store keys whose publish lease, or offers whose lease, ends now.
        request_ids: requests all of whose pixels or KV blocks are free, those of a call that
            still runs too: for a caller that may have been cut off from the reply that would
            have told it their keys. A key is to be released in one of the two ways.
    """

    keys: list[str] = []
    request_ids: list[str] = []


class EncodeItem(msgspec.Struct, frozen=True):
    """One item to encode: its pixels by handle, or inline as the codec's bytes.

    Attributes:
        rows: embedding rows that its placeholder expects; another count is an error.
        handle: where the pixels are.
        data: the pixels as the codec's bytes.
        text: the pixels as the contract's base64, where a client sent them so.
    """

    mm_hash: str
    modality: str
    rows: int
    handle: EcItem | None = None
    data: bytes | None = None
    text: str | None = None


class EncodeCall(msgspec.Struct, frozen=True):
    """Items of one request for one encode replica."""

    request_id: str
    items: list[EncodeItem]
    cache_salt: str = ""
    lease_s: float = 30.0


class Encoded(msgspec.Struct, frozen=True):
    """A descriptor per item, in the order of the call; `reused` says which were held already.

    `foreign` is what an encoder that is not ours answered instead: mm_hash -> its entry.
    """

    items: list[EcItem]
    reused: list[bool]
    foreign: dict[str, Any] | None = None


class ReserveItem(msgspec.Struct, frozen=True):
    """An item that will be encoded, without its pixels."""

    mm_hash: str
    rows: int


class ReserveCall(msgspec.Struct, frozen=True):
    """Asks an encode replica who encodes items: the one that a hash belongs to decides.

    Attributes:
        items: what it is about.
        cache_salt: of all items.
        lease_s: how long their embeddings, and the answer, are kept.
        delegate: id of the replica that the caller would rather have encode what is new, because
            this one has enough to do; "" for none.
        avoid: ids of replicas that failed the caller; what was delegated to them is free again.
    """

    request_id: str
    items: list[ReserveItem]
    cache_salt: str = ""
    lease_s: float = 30.0
    delegate: str = ""
    avoid: list[str] = []


class Reservation(msgspec.Struct, frozen=True):
    """The answer about one item.

    Attributes:
        state: `held`: it is here; `in_flight`: it is being encoded here, or was promised to be;
            `yours`: it is new, send it here; `elsewhere`: send it to `holder`.
        item: a descriptor of it, of which a fetch waits for its encode; None for `elsewhere`.
        holder: id of the other replica for `elsewhere`.
    """

    state: Literal["held", "in_flight", "yours", "elsewhere"]
    item: EcItem | None = None
    holder: str = ""


class Reserved(msgspec.Struct, frozen=True):
    """One answer per item, in the order of the call."""

    items: list[Reservation]


class HeldItem(msgspec.Struct, frozen=True, array_like=True):
    """An embedding by its names."""

    mm_hash: str
    cache_salt: str = ""


class Holdings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came into an encode replica's store, and what was evicted from it.

    Attributes:
        whole: `held` is everything that is there: forget what was said before.
    """

    held: list[HeldItem] = []
    evicted: list[HeldItem] = []
    whole: bool = False


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """New tokens of one choice.

    Attributes:
        index: the choice.
        token_ids: the new tokens.
        logprobs: an entry per new token, where asked for.
        finish_reason, stop_reason: set in the last delta of the choice.
        usage: in the very last delta of the request.
    """

    index: int = 0
    token_ids: list[int] = []
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None


class Prefilled(msgspec.Struct, frozen=True):
    """The first token of each choice, and where the KV blocks are.

    `kv_transfer_params` is None where every choice is finished already.
    """

    deltas: list[TokenDelta]
    kv_transfer_params: dict[str, Any] | None
    usage: Usage


RENDER = Method("/triptych.Render/Render", RenderCall, Rendered, stream=False)
RENDER_RELEASE = Method("/triptych.Render/Release", ReleaseCall, Empty, stream=False)
ENCODE = Method("/triptych.Worker/Encode", EncodeCall, Encoded, stream=False)
RESERVE = Method("/triptych.Worker/Reserve", ReserveCall, Reserved, stream=False)
HOLDINGS = Method("/triptych.Worker/Holdings", Empty, Holdings, stream=True)
PREFILL = Method("/triptych.Worker/Prefill", GenerateRequest, Prefilled, stream=False)
GENERATE = Method("/triptych.Worker/Generate", GenerateRequest, TokenDelta, stream=True)
KV_RELEASE = Method("/triptych.Worker/KvRelease", ReleaseCall, Empty, stream=False)
DESCRIBE = Method("/triptych.Replica/Describe", Empty, Replica, stream=False)
STATUS = Method("/triptych.Replica/Status", Empty, ReplicaStatus, stream=True)
