"""Membership from a list of addresses; each is asked who it is.

`host:port` is a gRPC address of a replica of ours. `role=http://host:port` is a server that is
not ours and speaks the HTTP contract.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec

from coordinator.membership.base import Snapshot
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, InvalidRequest, TriptychError
from protocol.replica import Replica, Role
from protocol.rpc import DESCRIBE, Empty
from serving.rpc_client import RpcChannel

_ASK_S = 2.0


def foreign(entry: str) -> Replica:
    """A replica from `role=http://host:port`.

    Raises:
        InvalidRequest: the role is unknown.
    """
    role, _, url = entry.partition("=")
    try:
        checked = msgspec.convert(role, Role)
    except msgspec.ValidationError:
        raise InvalidRequest(f"{role!r} is not a role", "replicas") from None
    return Replica(id=entry, role=checked, http=url.rstrip("/"), engine="vllm")


class StaticMembership:
    """Asks every address once per `period_s` for its description.

    An address that cannot be reached is left out until it can; a replica that was restarted comes
    back under its new id. One that is slow to answer stays: the pool finds out whether it hangs.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        *,
        period_s: float = 1.0,
        answer_s: float = _ASK_S,
    ) -> None:
        self._foreign = tuple(foreign(entry) for entry in addresses if "=http" in entry)
        self._native = tuple(entry for entry in addresses if "=http" not in entry)
        self._token = token
        self._period_s = period_s
        self._answer_s = answer_s

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """As `Membership.snapshots`."""
        async with contextlib.AsyncExitStack() as stack:
            channels = []
            for address in self._native:
                channel = RpcChannel(address, self._token)
                stack.push_async_callback(channel.close)
                channels.append(channel)
            last: Snapshot | None = None
            answers: list[Replica | None] = [None for _ in channels]
            while True:
                asked = zip(channels, answers, strict=True)
                answers = await asyncio.gather(*(self._describe(*one) for one in asked))
                known = (*(a for a in answers if a is not None), *self._foreign)
                if known != last:
                    last = known
                    yield known
                await asyncio.sleep(self._period_s if all(answers) else self._period_s / 4)

    async def _describe(self, channel: RpcChannel, before: Replica | None) -> Replica | None:
        """Who is there; who was, if no answer comes in time; None where nobody is."""
        try:
            return await channel.call(DESCRIBE, Empty(), Deadline.after(self._answer_s))
        except DeadlineExceeded:
            return before
        except TriptychError:
            return None
