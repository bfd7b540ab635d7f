"""Metrics of the workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from telemetry.metrics import SECONDS

SOURCES = ("handle", "inline", "ec", "cache")
"""Where the embedding of an item came from: pixels by handle or in the request and encoded here,
the EC connector, this worker's own cache."""


class WorkerMetrics:
    """Every metric of one worker.

    Args:
        registry: where they are exposed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "triptych_worker_requests",
            "Requests by call and outcome (ok, aborted, or the error's kind)",
            ("call", "outcome"),
            registry=registry,
        )
        self.items = Counter(
            "triptych_worker_items",
            "Media items by where their embedding came from",
            ("source",),
            registry=registry,
        )
        self.encoder_input_bytes = Counter(
            "triptych_worker_encoder_input_bytes",
            "Bytes of encoder inputs (pixels) that this worker took in",
            ("source",),
            registry=registry,
        )
        self.encoded_items = Counter(
            "triptych_worker_encoded_items", "Items that the tower encoded", registry=registry
        )
        self.encoder_seconds = Histogram(
            "triptych_worker_encoder_batch_seconds",
            "Time of one batch of the vision tower",
            buckets=SECONDS,
            registry=registry,
        )
        self.step_seconds = Histogram(
            "triptych_worker_step_seconds",
            "Time of one step of the decoder",
            buckets=SECONDS,
            registry=registry,
        )
        self.step_tokens = Counter(
            "triptych_worker_step_tokens",
            "Tokens that steps computed (prompt and generated)",
            registry=registry,
        )
        self.generated_tokens = Counter(
            "triptych_worker_generated_tokens", "Tokens that were sampled", registry=registry
        )
        self.cached_tokens = Counter(
            "triptych_worker_prefix_cached_tokens",
            "Prompt tokens that the prefix cache held",
            registry=registry,
        )
        self.preemptions = Counter(
            "triptych_worker_preemptions",
            "Sequences swapped out for want of KV blocks",
            registry=registry,
        )
        self.running = self._gauge("running_requests", "Choices that run")
        self.waiting = self._gauge("waiting_requests", "Requests and swapped choices that wait")
        self.kv_used = self._gauge("kv_blocks_used", "KV blocks that are held")
        self.kv_total = self._gauge("kv_blocks_total", "KV blocks")
        self.kv_pinned = self._gauge(
            "kv_pinned_requests", "Prefilled requests whose blocks wait to be fetched"
        )
        self.encoder_waiting = self._gauge("encoder_waiting_items", "Items that wait to be encoded")
        for source in SOURCES:
            self.items.labels(source)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"triptych_worker_{name}", text, registry=self.registry)

    def step(self, seconds: float, tokens: int, generated: int, preempted: int) -> None:
        """A step of the decoder was computed."""
        self.step_seconds.observe(seconds)
        self.step_tokens.inc(tokens)
        self.generated_tokens.inc(generated)
        if preempted:
            self.preemptions.inc(preempted)
