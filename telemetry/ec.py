"""Metrics of the EC connector."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from telemetry.metrics import BYTES, SECONDS


class EcMetrics:
    """Counters, gauges and histograms of one connector in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.hits = Counter(
            "triptych_ec_hits", "Reads of an item that was ready.", registry=registry
        )
        self.waits = Counter(
            "triptych_ec_waits", "Reads of an item that was being encoded.", registry=registry
        )
        self.evictions = Counter(
            "triptych_ec_evictions", "Items evicted to make room.", registry=registry
        )
        self.leases_expired = Counter(
            "triptych_ec_leases_expired", "Read leases that nobody released.", registry=registry
        )
        self.errors = Counter(
            "triptych_ec_errors", "Reads that failed, by kind.", ["kind"], registry=registry
        )
        self.fallbacks = Counter(
            "triptych_ec_transport_failures",
            "Transports dropped for a peer after a failure.",
            ["transport"],
            registry=registry,
        )
        self.transfer_seconds = Histogram(
            "triptych_ec_transfer_seconds",
            "From the request for an item to its last byte.",
            ["transport"],
            buckets=SECONDS,
            registry=registry,
        )
        self.transfer_bytes = Histogram(
            "triptych_ec_transfer_bytes",
            "Sizes of fetched items.",
            ["transport"],
            buckets=BYTES,
            registry=registry,
        )
        self._moved: dict[str, tuple[Histogram, Histogram]] = {}
        self._used = Gauge("triptych_ec_store_bytes", "Bytes taken.", registry=registry)
        self._capacity = Gauge("triptych_ec_store_capacity_bytes", "Size.", registry=registry)
        self._entries = Gauge("triptych_ec_store_entries", "Items held.", registry=registry)
        self._pinned = Gauge("triptych_ec_store_pinned", "Items pinned.", registry=registry)
        self._offers = Gauge("triptych_ec_offers", "Offers that are open.", registry=registry)
        self._leases = Gauge("triptych_ec_leases", "Read leases that are open.", registry=registry)

    def moved(self, transport: str, nbytes: int, seconds: float) -> None:
        """An item has arrived."""
        children = self._moved.get(transport)
        if children is None:  # finding a label's child costs more than observing
            children = self._moved[transport] = (
                self.transfer_seconds.labels(transport),
                self.transfer_bytes.labels(transport),
            )
        children[0].observe(seconds)
        children[1].observe(nbytes)

    def watch(
        self,
        *,
        used: Callable[[], float],
        capacity: Callable[[], float],
        entries: Callable[[], float],
        pinned: Callable[[], float],
        offers: Callable[[], float],
        leases: Callable[[], float],
    ) -> None:
        """Have the gauges ask when they are scraped."""
        self._used.set_function(used)
        self._capacity.set_function(capacity)
        self._entries.set_function(entries)
        self._pinned.set_function(pinned)
        self._offers.set_function(offers)
        self._leases.set_function(leases)
