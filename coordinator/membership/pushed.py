"""Membership that somebody else pushes, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from coordinator.membership.base import Snapshot
from protocol.replica import Replica, Role


class PushedMembership:
    """Keeps the latest replicas of each role; `publish` may be called before anybody listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_role: dict[Role, tuple[Replica, ...]] = {}
        self._listener: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def publish(self, role: Role, replicas: Sequence[Replica]) -> None:
        """Replace all replicas of a role. Thread-safe, never blocks on the event loop."""
        with self._lock:
            self._by_role[role] = tuple(replicas)
            listener = self._listener
        if listener is not None:
            loop, changed = listener
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """As `Membership.snapshots`; changes that come faster than they are read are merged."""
        changed = asyncio.Event()
        with self._lock:
            self._listener = (asyncio.get_running_loop(), changed)
        changed.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                with self._lock:
                    replicas = [r for role in self._by_role.values() for r in role]
                yield tuple(replicas)
        finally:
            with self._lock:
                self._listener = None
