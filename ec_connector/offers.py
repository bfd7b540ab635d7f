"""Offers: spans of a registered region that a consumer may read once. Pure.

An offer ends when a consumer is done with it, when its time is over, or when its holder retires
it; then no new lease is granted. It is released, exactly once, when it has ended and nobody reads
it any more, so memory is never handed back under a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Offer:
    """One offered list of spans.

    Attributes:
        region: id of the region.
        spans: (offset, nbytes) in the region, in order.
        until: when it ends by itself.
        on_release: called once, after which the memory is its owner's again.
        pins: read leases and pushes under way.
        ended: no new lease is granted.
    """

    key: str
    name: str
    region: int
    spans: tuple[tuple[int, int], ...]
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    until: float
    on_release: Callable[[], None]
    pins: int = 0
    ended: bool = False


class OfferTable:
    """The offers of a process by key."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def add(self, offer: Offer) -> None:
        """Take an offer in."""
        self._offers[offer.key] = offer

    def find(self, key: str) -> Offer | None:
        """An offer that has not ended."""
        offer = self._offers.get(key)
        return None if offer is None or offer.ended else offer

    def end(self, key: str) -> list[Offer]:
        """No new lease for this key; returns it if it can be released now."""
        offer = self._offers.get(key)
        if offer is None:
            return []
        offer.ended = True
        return self.settle(offer)

    def settle(self, offer: Offer) -> list[Offer]:
        """Drop an offer that has ended and is not read; returns it if so, for its release."""
        if offer.ended and offer.pins == 0 and self._offers.pop(offer.key, None) is not None:
            return [offer]
        return []

    def expire(self, now: float) -> list[Offer]:
        """End offers whose time is over; returns those that can be released now."""
        over = [o for o in self._offers.values() if o.until <= now and not o.ended]
        return [released for offer in over for released in self.end(offer.key)]

    def drain(self) -> list[Offer]:
        """Drop all, read or not: the process ends."""
        offers, self._offers = list(self._offers.values()), {}
        for offer in offers:
            offer.ended = True
        return offers
