"""Which request's KV blocks were offered under which key, for callers that know the request alone.

Bounded: what is forgotten is freed when its lease ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from protocol.transfer import parse_kv_handoff


class OfferedBlocks:
    """Keys of offers by request id.

    Args:
        capacity: requests kept; the oldest is forgotten first.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, request_id: str | None, kv_transfer_params: dict[str, Any] | None) -> None:
        """Remember the handoff of a request."""
        handoff = parse_kv_handoff(kv_transfer_params or {})
        if request_id is None or handoff is None:
            return
        self._keys[request_id] = handoff.source.key
        self._keys.move_to_end(request_id)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def take(self, request_ids: Iterable[str]) -> list[str]:
        """Forget these requests; returns the keys of their offers."""
        keys = (self._keys.pop(request_id, None) for request_id in request_ids)
        return [key for key in keys if key is not None]
