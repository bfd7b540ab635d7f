"""Metrics of the render server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from telemetry.metrics import SECONDS


class RenderMetrics:
    """What a render server counts; one per server, on its own registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "triptych_render_requests",
            "Requests by endpoint and HTTP status.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.running = Gauge(
            "triptych_render_running", "Requests that are being rendered.", registry=registry
        )
        self.seconds = Histogram(
            "triptych_render_seconds",
            "Time to render one request.",
            ["endpoint"],
            buckets=SECONDS,
            registry=registry,
        )
        self.media_seconds = Histogram(
            "triptych_render_media_seconds",
            "Time in the media pool per item, waiting included.",
            buckets=SECONDS,
            registry=registry,
        )
        self.media_bytes = Counter(
            "triptych_render_media_bytes", "Bytes of media as uploaded.", registry=registry
        )
        self.cache_hits = Counter(
            "triptych_render_cache_hits", "Items taken from the cache.", registry=registry
        )
        self.cache_bytes = Gauge(
            "triptych_render_cache_bytes", "Bytes of processed items kept.", registry=registry
        )
        self.prompt_tokens = Counter(
            "triptych_render_prompt_tokens", "Tokens of rendered prompts.", registry=registry
        )
