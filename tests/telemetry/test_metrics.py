"""The exposition of metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from telemetry.metrics import BYTES, SECONDS, exposition


def test_a_registry_is_written_as_text() -> None:
    registry = CollectorRegistry()
    Counter("triptych_test", "a test", registry=registry).inc()
    text, kind = exposition(registry)
    assert b"triptych_test_total 1.0" in text
    assert kind.startswith("text/plain")


def test_buckets_grow() -> None:
    assert list(SECONDS) == sorted(set(SECONDS))
    assert list(BYTES) == sorted(set(BYTES))
