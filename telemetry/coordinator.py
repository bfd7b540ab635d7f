"""Metrics of the coordinator."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from telemetry.metrics import SECONDS


class CoordinatorMetrics:
    """One set per coordinator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "triptych_requests", "Requests by endpoint and outcome (an error kind, or ok)",
            ["endpoint", "outcome"], registry=registry,
        )  # fmt: skip
        self.running = Gauge(
            "triptych_requests_running", "Requests let in and not ended", registry=registry
        )
        self.request_seconds = Histogram(
            "triptych_request_seconds", "Admission to the last token",
            ["endpoint"], registry=registry, buckets=(*SECONDS, 60.0, 300.0),
        )  # fmt: skip
        self.first_token_seconds = Histogram(
            "triptych_first_token_seconds", "Admission to the first token",
            ["endpoint"], registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self.prompt_tokens = Counter(
            "triptych_prompt_tokens", "Prompt tokens, placeholders expanded", registry=registry
        )
        self.completion_tokens = Counter(
            "triptych_completion_tokens", "Tokens given to clients", registry=registry
        )
        self.stage_seconds = Histogram(
            "triptych_stage_seconds", "One call of a stage, without waiting for a replica",
            ["stage"], registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self.stage_wait_seconds = Histogram(
            "triptych_stage_wait_seconds", "Waiting for a replica of a stage",
            ["stage"], registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self.retries = Counter(
            "triptych_retries", "Calls tried again, by stage and error kind",
            ["stage", "kind"], registry=registry,
        )  # fmt: skip
        self.items = Counter(
            "triptych_items", "Media items by how their embedding came about",
            ["how"], registry=registry,
        )  # fmt: skip
        self.replicas_ready = Gauge(
            "triptych_replicas_ready", "Replicas that take work",
            ["role"], registry=registry,
        )  # fmt: skip
