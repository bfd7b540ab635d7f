"""Which embeddings an encode replica holds, told to whoever listens: its publish and evict notices.

A listener hears everything once, then changes, several at a time. One that does not keep up hears
everything again, so that what is kept for it is bounded by what the store holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from protocol.rpc import HeldItem, Holdings

_PERIOD_S = 0.1
"""Changes within it are told together."""

_MAX_PENDING = 4096


@dataclass(slots=True, eq=False)
class _Listener:
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    whole: bool = True
    pending: dict[HeldItem, bool] = field(default_factory=dict)

    def hear(self, item: HeldItem, *, held: bool) -> None:
        self.pending[item] = held
        if len(self.pending) > _MAX_PENDING:
            self.whole = True
        if self.whole:
            self.pending.clear()
        self.changed.set()


class HoldingsBoard:
    """Keeps the names of what the store holds, by the store's keys."""

    def __init__(self) -> None:
        self._held: dict[str, HeldItem] = {}
        self._listeners: set[_Listener] = set()

    def __len__(self) -> int:
        return len(self._held)

    def published(self, key: str, item: HeldItem) -> None:
        """An embedding is in the store."""
        if key not in self._held:
            self._held[key] = item
            self._tell(item, held=True)

    def evicted(self, key: str) -> None:
        """An entry is gone; keys of other things are ignored."""
        item = self._held.pop(key, None)
        if item is not None:
            self._tell(item, held=False)

    async def watch(self) -> AsyncIterator[Holdings]:
        """Everything, then what changes."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            while True:
                listener.changed.clear()
                whole, changes = listener.whole, listener.pending
                listener.whole, listener.pending = False, {}
                if whole:
                    yield Holdings(list(self._held.values()), whole=True)
                elif changes:
                    yield Holdings(
                        [item for item, held in changes.items() if held],
                        [item for item, held in changes.items() if not held],
                    )
                await listener.changed.wait()
                await asyncio.sleep(_PERIOD_S)
        finally:
            self._listeners.discard(listener)

    def _tell(self, item: HeldItem, *, held: bool) -> None:
        for listener in self._listeners:
            listener.hear(item, held=held)
