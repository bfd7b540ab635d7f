"""What a worker can be told."""

from __future__ import annotations

from typing import Literal

import msgspec

from ec_connector.config import EcConfig
from protocol.errors import InvalidRequest
from telemetry.traces import Exporter

WorkerRole = Literal["encode", "prefill", "decode", "prefill_decode", "all"]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker process.

    Attributes:
        model: directory of the checkpoint in Hugging Face layout.
        role: what it does.
        served_model_name: the name it answers to, "" for `model` as given.
        revision: recorded in the fingerprint; replicas of different revisions do not mix.
        host, http_port, grpc_port: where to listen; port 0 picks a free one.
        advertise_host: the host that peers are told, "" for `host`.
        ec: the EC connector, which moves embeddings, pixels and KV blocks.
        cluster_token: what gRPC callers must present, "" for none.
        api_keys: keys of the HTTP endpoints, none for open ones.
        enable_scale_out: offer `/inference/v1/*` over HTTP.
        protect_metrics: ask for a key on /metrics too.
        max_body_bytes: larger HTTP bodies are 413.
        device, dtype: torch's names; dtype `auto` is the checkpoint's, float32 on CPU.
        threads: torch threads of the model's thread, 0 for torch's default.
        max_model_len: tokens of context, 0 for the model's.
        kv_bytes: size of the KV cache.
        kv_staging_bytes: host memory through which KV blocks are handed over where the cache is in
            device memory.
        block_size: tokens per KV block; all replicas of a cluster must agree.
        max_num_seqs: choices that run at once.
        max_num_batched_tokens: tokens of one step; longer prompts are prefilled in chunks.
        max_queued_requests: requests that wait; more are refused with 429.
        prefix_caching: share full KV blocks of equal prefixes.
        vision: load the vision tower where the role has one.
        normalize_pixels: pixels come raw, as our render and vLLM's send them, and are rescaled and
            normalised here; off for a renderer that does it.
        encoder_max_batch_tokens: patches that one encoder step takes; a larger item runs alone.
        embedding_cache_bytes: embeddings kept for prompts that show the same item again.
        max_item_wait_s: longest wait for one embedding.
        request_timeout_s: longest time an HTTP request may take.
        tracing, otlp_endpoint: where OpenTelemetry spans of calls go that a client traces.
        seed: of requests that bring none, None for a random one each.
    """

    model: str
    role: WorkerRole
    served_model_name: str = ""
    revision: str = ""
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    advertise_host: str = ""
    ec: EcConfig = EcConfig()
    cluster_token: str = ""
    api_keys: tuple[str, ...] = ()
    enable_scale_out: bool = False
    protect_metrics: bool = False
    max_body_bytes: int = 256 * 2**20
    device: str = "cpu"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    threads: int = 0
    max_model_len: int = 0
    kv_bytes: int = 256 * 2**20
    kv_staging_bytes: int = 2**30
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_queued_requests: int = 256
    prefix_caching: bool = True
    vision: bool = True
    normalize_pixels: bool = True
    encoder_max_batch_tokens: int = 8192
    embedding_cache_bytes: int = 64 * 2**20
    max_item_wait_s: float = 30.0
    request_timeout_s: float = 600.0
    tracing: Exporter = "off"
    otlp_endpoint: str = ""
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "kv_bytes",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_queued_requests",
            "encoder_max_batch_tokens",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1", name)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequest(
                "max_num_batched_tokens must be at least max_num_seqs: each running choice needs "
                "a token of every step",
                "max_num_batched_tokens",
            )
        for name in ("threads", "max_model_len", "embedding_cache_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} must not be negative", name)

    @property
    def model_name(self) -> str:
        """The name that requests may give."""
        return self.served_model_name or self.model

    @property
    def loads_vision(self) -> bool:
        """Whether this worker has a vision tower."""
        return self.role == "encode" or (self.vision and self.role != "decode")

    @property
    def loads_language(self) -> bool:
        """Whether this worker has a language model and a KV cache."""
        return self.role != "encode"
