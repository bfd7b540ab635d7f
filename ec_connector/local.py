"""Reading this process's own items: a lease, and no socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ec_connector.holder import LOCAL_SESSION, Ask, Grant, Holder
from protocol.deadline import Deadline
from protocol.errors import TriptychError
from protocol.transfer import EcItem


@asynccontextmanager
async def lease(holder: Holder, item: EcItem, deadline: Deadline) -> AsyncIterator[Grant]:
    """A grant that lasts as long as the context; waits for an item that is being encoded.

    Raises:
        TransferError: as a peer would answer.
    """
    future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

    def answer(result: Grant | TriptychError) -> None:
        if isinstance(result, TriptychError):
            future.set_exception(result)
        else:
            future.set_result(result)

    ask = Ask(LOCAL_SESSION, item.key, item.mm_hash, answer)
    holder.acquire(ask, item.epoch, item.expires_at, deadline.remaining("transfer"))
    try:
        grant = await asyncio.shield(future)
    except asyncio.CancelledError:
        holder.cancel(ask)
        if future.done() and future.exception() is None:
            holder.release(LOCAL_SESSION, future.result().lease.id, done=False)
        raise
    done = False
    try:
        yield grant
        done = True
    finally:
        holder.release(LOCAL_SESSION, grant.lease.id, done=done)
