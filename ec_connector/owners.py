"""Which store keys belong to which request, for callers that know the request alone.

A caller that was cut off never learnt the keys of what was published or offered for it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class RunningCall:
    """One call that may end in keys.

    Attributes:
        unwanted: its caller has gone; its keys are freed at once.
    """

    def __init__(self) -> None:
        self.unwanted = False


class KeyOwners:
    """Keys by request id.

    A caller that goes away says so in a call of its own, which may overtake the end of the
    call that it is about: calls that run are marked, and what they take is freed.

    Args:
        capacity: requests kept; the oldest is forgotten first, and freed when its lease ends.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[str, list[str]] = OrderedDict()
        self._running: defaultdict[str, list[RunningCall]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def running(self, request_id: str | None) -> Iterator[RunningCall]:
        """A call for a request runs."""
        call = RunningCall()
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

    def add(self, request_id: str | None, keys: Sequence[str], call: RunningCall) -> list[str]:
        """Remember the keys of a request; returns those that nobody will ask for."""
        if request_id is None or not keys:
            return []
        if call.unwanted:
            return list(keys)
        self._keys.setdefault(request_id, []).extend(keys)
        self._keys.move_to_end(request_id)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)
        return []

    def take(self, request_ids: Iterable[str]) -> list[str]:
        """Forget these requests, those that run too; returns their keys."""
        keys: list[str] = []
        for request_id in request_ids:
            for call in self._running.get(request_id, ()):
                call.unwanted = True
            keys += self._keys.pop(request_id, ())
        return keys
