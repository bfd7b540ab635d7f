"""The event loop's end of a request in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from workers.engine import Message


@dataclass(frozen=True, slots=True)
class Aborted:
    """Somebody else ended the request."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The request's time is over."""


Said = Message | Aborted | Expired


class WorkStream:
    """Messages of one request, in order. `put` is the engine's sink."""

    def __init__(self) -> None:
        self._messages: list[Said] = []
        self._arrived = asyncio.Event()

    def put(self, messages: Sequence[Said]) -> None:
        """Take messages in; called in the event loop."""
        self._messages += messages
        self._arrived.set()

    async def get(self) -> list[Said]:
        """All messages that are there, at least one."""
        await self._arrived.wait()
        messages, self._messages = self._messages, []
        self._arrived.clear()
        return messages
