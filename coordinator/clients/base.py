"""The contract of a connection to one replica."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, TypeVar

from protocol.deadline import Deadline
from protocol.rpc import Method

Req = TypeVar("Req")
Rep = TypeVar("Rep")


class StageClient(Protocol):
    """Calls `protocol.rpc` methods of one replica.

    A call that is left early (cancelled, its stream closed) is cancelled at the replica.
    """

    async def call(self, method: Method[Req, Rep], request: Req, deadline: Deadline) -> Rep:
        """One request, one reply.

        Raises:
            TriptychError: what the replica raised; Unavailable where it could not be reached or was
                lost; DeadlineExceeded.
        """
        ...

    def stream(
        self, method: Method[Req, Rep], request: Req, deadline: Deadline
    ) -> AsyncGenerator[Rep, None]:
        """One request, a stream of replies; raises as `call` does, also in mid-stream."""
        ...

    async def reset(self) -> None:
        """Give up everything in flight: those calls raise Unavailable. New ones reconnect."""
        ...

    async def close(self) -> None:
        """Give up everything and connect no more."""
        ...
