"""Configuration of the coordinator; every key has a default."""

from __future__ import annotations

import msgspec

from coordinator.admission import AdmissionConfig
from serving.http import DEFAULT_MAX_BODY_BYTES
from telemetry.traces import Exporter


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one stage.

    Attributes:
        timeout_s: seconds that one attempt may take; for decode, between two tokens.
        attempts: how often a request may try the stage, the first time included.
        concurrency: calls in flight to one replica; more wait.
        queue: callers that may wait for a replica; more are refused with 429.
    """

    timeout_s: float = 60.0
    attempts: int = 4
    concurrency: int = 64
    queue: int = 1024


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a coordinator can be told.

    Attributes:
        served_model_name: the name that clients use; "" takes the names that replicas report.
        host, port: where HTTP listens; port 0 picks a free one.
        api_keys: accepted keys; none means that no key is asked for.
        cluster_token: presented to replicas.
        foreign_api_key: presented to servers that are not ours.
        enable_scale_out: open render, derender and generate to clients.
        protect_metrics: ask for a key on /metrics too.
        max_body_bytes: larger bodies are refused with 413.
        max_choices: answers that one request may ask for, over all its prompts.
        request_timeout_s: seconds from admission to the last token.
        stage_wait_s: seconds a request waits for a ready replica of a stage.
        embedding_lease_s: how long an encode replica holds an item for its prefill.
        directory_entries: embeddings whose holder is remembered.
        probe_interval_s, probe_timeout_s: how often a replica is asked for a sign of life, and how
            long it may take before its calls are given up.
        affinity_slack: how far above the mean load an encode replica is still chosen because it
            is an item's home, 1.0 being the mean.
        overlap: let prefill begin while items are being encoded.
        trace_header: answer X-Triptych-Trace, which tells replicas and times of the stages.
        tracing, otlp_endpoint: where OpenTelemetry spans go.
        admission: what is let in at once.
        render, encode, prefill, decode: limits of the stages.
    """

    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cluster_token: str = ""
    foreign_api_key: str = ""
    enable_scale_out: bool = False
    protect_metrics: bool = False
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_choices: int = 256
    request_timeout_s: float = 600.0
    stage_wait_s: float = 30.0
    embedding_lease_s: float = 30.0
    directory_entries: int = 65536
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 5.0
    affinity_slack: float = 1.25
    overlap: bool = True
    trace_header: bool = False
    tracing: Exporter = "off"
    otlp_endpoint: str = ""
    admission: AdmissionConfig = AdmissionConfig()
    render: StageConfig = StageConfig()
    encode: StageConfig = StageConfig()
    prefill: StageConfig = StageConfig(timeout_s=120.0)
    decode: StageConfig = StageConfig(timeout_s=120.0, concurrency=256)
