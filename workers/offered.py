"""Which request's KV blocks were offered under which key, for callers that know the request alone.

Bounded: what is forgotten is freed when its lease ends.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.transfer import parse_kv_handoff


class PrefillCall:
    """One call that may end in an offer.

    Attributes:
        unwanted: its caller has gone; what it offers is freed at once.
    """

    def __init__(self) -> None:
        self.unwanted = False


class OfferedBlocks:
    """Keys of offers by request id.

    A caller that goes away says so in a call of its own, which may overtake the end of the
    prefill that it is about: calls that run are marked, and free what they offer.

    Args:
        capacity: requests kept; the oldest is forgotten first.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._running: defaultdict[str, list[PrefillCall]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def running(self, request_id: str | None) -> Iterator[PrefillCall]:
        """A prefill of a request runs."""
        call = PrefillCall()
        if request_id is None:
            yield call
            return
        calls = self._running[request_id]
        calls.append(call)
        try:
            yield call
        finally:
            calls.remove(call)
            if not calls:
                self._running.pop(request_id, None)

    def add(
        self, request_id: str | None, kv_transfer_params: dict[str, Any] | None, call: PrefillCall
    ) -> list[str]:
        """Remember the handoff of a request; returns the keys that nobody will ask for."""
        handoff = parse_kv_handoff(kv_transfer_params or {})
        if request_id is None or handoff is None:
            return []
        if call.unwanted:
            return [handoff.source.key]
        self._keys[request_id] = handoff.source.key
        self._keys.move_to_end(request_id)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)
        return []

    def take(self, request_ids: Iterable[str]) -> list[str]:
        """Forget these requests, those that run too; returns the keys of their offers."""
        keys = []
        for request_id in request_ids:
            for call in self._running.get(request_id, ()):
                call.unwanted = True
            keys.append(self._keys.pop(request_id, None))
        return [key for key in keys if key is not None]
