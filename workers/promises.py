"""Who was told that they, or another replica, would encode an item: the memory of `reserve`.

Bounded by time and by number; forgetting a promise costs at most one encode too many.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection

from workers.embedding_cache import ItemKey


class Promises:
    """Promises by item.

    Args:
        capacity: how many are kept; the oldest is forgotten first.
        clock: monotonic seconds.
    """

    def __init__(self, capacity: int = 16384, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._kept: OrderedDict[ItemKey, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def holder(self, key: ItemKey, delegate: str, lease_s: float, avoid: Collection[str]) -> str:
        """The replica that encodes an item instead of this one; "" if this one does.

        Args:
            key: the item.
            delegate: who shall encode it if nobody was told to yet; "" for this replica.
            lease_s: how long that is remembered.
            avoid: promises of these are void.
        """
        holder, until = self._kept.get(key, ("", 0.0))
        if until > self._clock() and holder not in avoid:
            return holder
        if delegate:
            self._put(key, delegate, lease_s)
        return delegate

    def kept(self, key: ItemKey) -> bool:
        """Whether somebody was told to send the item here, and may still do so."""
        holder, until = self._kept.get(key, ("other", 0.0))
        return holder == "" and until > self._clock()

    def make(self, key: ItemKey, lease_s: float) -> None:
        """Somebody is told to send the item here."""
        self._put(key, "", lease_s)

    def end(self, key: ItemKey) -> None:
        """The item came."""
        self._kept.pop(key, None)

    def _put(self, key: ItemKey, holder: str, lease_s: float) -> None:
        self._kept[key] = (holder, self._clock() + lease_s)
        self._kept.move_to_end(key)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
