"""Who a replica is: role, addresses, fingerprint, load."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

Role = Literal["render", "encode", "prefill", "decode", "prefill_decode", "all"]

WORKER_ROLES: tuple[Role, ...] = ("encode", "prefill", "decode", "prefill_decode", "all")

ENCODES: frozenset[Role] = frozenset({"encode", "all"})
PREFILLS: frozenset[Role] = frozenset({"prefill", "prefill_decode", "all"})
DECODES: frozenset[Role] = frozenset({"decode", "prefill_decode", "all"})


class Fingerprint(msgspec.Struct, frozen=True):
    """What must agree for two replicas to serve one request together.

    Attributes:
        model: content digest of the model's configuration and weights index, so that two
            checkouts of one model agree whatever their path.
        revision: the revision asked for, or "".
        dtype: dtype of activations, embeddings and KV.
        layout: version of our KV and embedding layout, with block size, e.g. `kv1/16`.
    """

    model: str
    revision: str
    dtype: str
    layout: str

    @property
    def digest(self) -> str:
        """16 hex digits that name this fingerprint in keys and handshakes."""
        joined = "\0".join((self.model, self.revision, self.dtype, self.layout))
        return hashlib.sha256(joined.encode()).hexdigest()[:16]


class Replica(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process that serves a stage.

    Attributes:
        id: unique among replicas, new after each restart.
        role: what it does.
        grpc: `host:port` of its gRPC server, "" for a foreign one.
        http: base URL of its HTTP server, "" where it has none.
        fingerprint: None for render and for foreign replicas.
        model: the name that it serves.
        engine: `native`, or `vllm` for a foreign server that speaks the contract over HTTP.
        max_model_len: tokens of context, 0 where unknown.
        has_vision: whether it can encode pixels itself.
    """

    id: str
    role: Role
    grpc: str = ""
    http: str = ""
    fingerprint: Fingerprint | None = None
    model: str = ""
    engine: Literal["native", "vllm"] = "native"
    max_model_len: int = 0
    has_vision: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica says of its load, pushed on change, at most ten times a second.

    Attributes:
        ready: takes new work.
        draining: ends what it has, takes nothing new.
        running, waiting: requests or items in work and queued.
        kv_free, kv_total: KV blocks.
        store_used, store_capacity: bytes of its store.
        queue_age_s: how long the oldest waiting one has waited.
    """

    ready: bool = True
    draining: bool = False
    running: int = 0
    waiting: int = 0
    kv_free: int = 0
    kv_total: int = 0
    store_used: int = 0
    store_capacity: int = 0
    queue_age_s: float = 0.0
