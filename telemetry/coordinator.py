"""Metrics of the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from telemetry.metrics import SECONDS

_LONG = (*SECONDS, 60.0, 300.0)


class CoordinatorMetrics:
    """One set per coordinator.

    Args:
        registry: where they are exposed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "triptych_requests",
            "Requests by endpoint and outcome (ok, disconnected, or the error's kind)",
            ("endpoint", "outcome"),
            registry=registry,
        )
        self.running = Gauge(
            "triptych_requests_running", "Requests let in and not ended", registry=registry
        )
        self.request_seconds = Histogram(
            "triptych_request_seconds",
            "Admission to the last token",
            ("endpoint",),
            registry=registry,
            buckets=_LONG,
        )
        self.first_token_seconds = Histogram(
            "triptych_first_token_seconds",
            "Admission to the first token",
            ("endpoint",),
            registry=registry,
            buckets=SECONDS,
        )
        self.prompt_tokens = Counter(
            "triptych_prompt_tokens", "Prompt tokens, placeholders expanded", registry=registry
        )
        self.completion_tokens = Counter(
            "triptych_completion_tokens", "Tokens given to clients", registry=registry
        )
        self.stage_seconds = Histogram(
            "triptych_stage_seconds",
            "One call of a stage, without the wait for a replica",
            ("stage",),
            registry=registry,
            buckets=_LONG,
        )
        self.stage_wait_seconds = Histogram(
            "triptych_stage_wait_seconds",
            "Wait for a replica of a stage",
            ("stage",),
            registry=registry,
            buckets=SECONDS,
        )
        self.stage_errors = Counter(
            "triptych_stage_errors",
            "Calls of a stage that failed, by error kind",
            ("stage", "kind"),
            registry=registry,
        )
        self.retries = Counter(
            "triptych_retries",
            "Calls made again, as stage.kind of what had failed",
            ("reason",),
            registry=registry,
        )
        self.items = Counter(
            "triptych_items",
            "Media items by how their embedding came about: held, shared, encoded, encoded_again, "
            "pixels (disaggregation was off for it), local (one replica does everything)",
            ("how",),
            registry=registry,
        )
        self.topologies = Counter(
            "triptych_topologies",
            "Requests by the pools that served them: split, fused, all",
            ("topology",),
            registry=registry,
        )
        self.replicas_ready = Gauge(
            "triptych_replicas_ready", "Replicas that take work", ("role",), registry=registry
        )
        self.in_flight = Gauge(
            "triptych_in_flight",
            "What admission counts: requests, body_bytes, image_tokens, kv_tokens",
            ("what",),
            registry=registry,
        )
        self.directory_entries = Gauge(
            "triptych_directory_entries", "Embeddings whose holder is remembered", registry=registry
        )

    def finished(self, endpoint: str, outcome: str, summary: dict[str, Any]) -> None:
        """A request has ended; `summary` is its receipt's."""
        self.running.dec()
        self.requests.labels(endpoint, outcome).inc()
        self.request_seconds.labels(endpoint).observe(summary["seconds"])
        if summary["first_token_s"] is not None:
            self.first_token_seconds.labels(endpoint).observe(summary["first_token_s"])
        self.prompt_tokens.inc(summary["prompt_tokens"])
        self.completion_tokens.inc(summary["completion_tokens"])
        if summary["topology"]:
            self.topologies.labels(summary["topology"]).inc()
        for call in summary["calls"]:
            self.stage_seconds.labels(call["stage"]).observe(call["work_s"])
            self.stage_wait_seconds.labels(call["stage"]).observe(call["wait_s"])
            if "error" in call:
                self.stage_errors.labels(call["stage"], call["error"]).inc()
        for reason, count in summary["retries"].items():
            self.retries.labels(reason).inc(count)
        for how, count in summary["items"].items():
            self.items.labels(how).inc(count)

    def ready(self, roles: Iterable[str]) -> None:
        """The roles of the replicas that take work now, one entry each."""
        self.replicas_ready.clear()
        for role in roles:
            self.replicas_ready.labels(role).inc()
