"""Which encode replica holds which embedding, as far as this coordinator has heard.

It hears from replicas' answers, and from their publish and evict notices. Only a cache: what it
says may be out of date, and every use of it survives that. Bounded; the least recently used entry
is forgotten first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.rpc import Holdings
from protocol.transfer import EcItem

_MARGIN = 0.5
"""Part of a lease that a descriptor is given out for; the rest is for prefill to fetch."""


class ItemKey(NamedTuple):
    """What tells embeddings apart: replicas of other cohorts compute other ones."""

    cohort: str
    salt: str
    mm_hash: str


@dataclass(frozen=True, slots=True)
class Held:
    """Where an embedding is.

    Attributes:
        holder: id of the encode replica.
        item: its descriptor, or None for a foreign one.
        foreign: the entry of a foreign connector.
        fresh_until: monotonic seconds until which the descriptor may be given out; 0 where only
            a notice told of it.
    """

    holder: str
    item: EcItem | None
    foreign: Any
    fresh_until: float


class Directory:
    """Embeddings by key.

    Args:
        capacity: entries kept.
        clock: monotonic seconds.
    """

    def __init__(self, capacity: int = 65536, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._entries: OrderedDict[ItemKey, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def fresh(self, key: ItemKey) -> Held | None:
        """An entry whose descriptor can be used as it is."""
        held = self._entries.get(key)
        if held is None or held.fresh_until <= self._clock():
            return None
        self._entries.move_to_end(key)
        return held

    def holder(self, key: ItemKey) -> str | None:
        """The replica that had it last: asked first, it may still have it."""
        held = self._entries.get(key)
        return held.holder if held is not None else None

    def put(
        self, key: ItemKey, holder: str, item: EcItem | None, foreign: Any, lease_s: float
    ) -> None:
        """A replica answered that it holds the item for `lease_s`."""
        until = self._clock() + lease_s * _MARGIN
        self._put(key, Held(holder, item, foreign, until))

    def _put(self, key: ItemKey, held: Held) -> None:
        self._entries[key] = held
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def forget(self, key: ItemKey, holder: str) -> None:
        """The item was not there: forget the entry unless it names another holder by now."""
        held = self._entries.get(key)
        if held is not None and held.holder == holder:
            del self._entries[key]

    def hear(self, cohort: str, holder: str, notice: Holdings) -> None:
        """A replica's notice of what came into its store, and of what was evicted from it."""
        named = [ItemKey(cohort, item.cache_salt, item.mm_hash) for item in notice.held]
        if notice.whole:
            there = set(named)
            for key in [k for k, held in self._entries.items() if held.holder == holder]:
                if key not in there:
                    del self._entries[key]
        for key in named[-self._capacity :]:
            if self.fresh(key) is None:
                self._put(key, Held(holder, None, None, 0.0))
        for item in notice.evicted:
            self.forget(ItemKey(cohort, item.cache_salt, item.mm_hash), holder)

    def forget_holder(self, holder: str) -> None:
        """A replica is gone with all that it held."""
        for key in [key for key, held in self._entries.items() if held.holder == holder]:
            del self._entries[key]
