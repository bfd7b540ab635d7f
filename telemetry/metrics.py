"""What the metric files share: bucket boundaries and the exposition format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Buckets of stage durations."""

BYTES = tuple(float(4**power) for power in range(5, 16))
"""Buckets of transfer sizes: 1 KiB to 1 GiB."""


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """The registry's metrics as text, and their content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
