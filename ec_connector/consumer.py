"""Fetching items: which transport moves the bytes, where they go, what happens when it fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from ec_connector import local
from ec_connector.content import checksum
from ec_connector.copying import run, scatter
from ec_connector.descriptors import check_form
from ec_connector.holder import Holder
from ec_connector.inline import InlineChannel
from ec_connector.messages import Granted
from ec_connector.peer import HeldLease, Peer
from ec_connector.peers import Peers
from ec_connector.regions import Region
from ec_connector.scratch import Destination, ScratchPool
from ec_connector.transports.base import Channel, Context, Transport
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, TransferError
from protocol.transfer import EcItem
from telemetry.ec import EcMetrics

_SETUP_S = 3.0
"""Most time a link or channel may take to open while another transport is left to try."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An item, valid inside its context only.

    Attributes:
        data: read-only bytes.
        in_place: they are where the producer has them; nothing was moved.
    """

    data: memoryview
    shape: tuple[int, ...]
    dtype: str
    in_place: bool


@dataclass(slots=True)
class _Moved:
    """An item that is here: in the caller's buffers, in scratch memory, or where it was.

    Attributes:
        viewed: the bytes in the producer's memory, right only while the lease lasts.
        destination: scratch memory that holds them.
        quarantined: the read was given up and goes on; it ends its lease by itself.
    """

    granted: Granted
    lease: HeldLease
    viewed: memoryview | None = None
    destination: Destination | None = None
    quarantined: bool = False


class Consumer:
    """Reads items of other processes, and of this one without a socket."""

    def __init__(
        self,
        context: Context,
        holder: Holder,
        regions: Mapping[int, Region],
        transports: dict[str, Transport],
        metrics: EcMetrics,
    ) -> None:
        self._context = context
        self._holder = holder
        self._regions = regions
        self._transports = transports
        self._metrics = metrics
        self.peers = Peers(context)
        self._scratch = ScratchPool(holder.store, regions)

    async def stop(self) -> None:
        """End all sessions."""
        await self._scratch.stop()
        await self.peers.close()

    @asynccontextmanager
    async def fetch(self, item: EcItem, deadline: Deadline) -> AsyncIterator[Fetched]:
        """The item as one buffer; see `EcConnector.fetch`."""
        if self._is_ours(item):
            async with local.lease(self._holder, item, deadline) as grant:
                views = self._regions[grant.region].views(grant.spans)
                data = views[0] if len(views) == 1 else memoryview(b"".join(views))
                with _valid(data) as valid:
                    yield Fetched(valid, grant.shape, grant.dtype, in_place=len(views) == 1)
            return
        peer, moved = await self._move(item, None, deadline)
        granted = moved.granted
        if moved.viewed is None:
            # The bytes are ours already: nothing that happens to the peer matters any more.
            destination = moved.destination
            if destination is None:
                raise ValueError("a fetch without buffers has a destination")
            try:
                with _valid(destination.buffer) as valid:
                    yield Fetched(valid, granted.shape, granted.dtype, in_place=False)
            finally:
                destination.free()
            return
        done = False
        try:
            with _valid(moved.viewed) as valid:
                yield Fetched(valid, granted.shape, granted.dtype, in_place=True)
            await self._confirm(peer, moved.lease, item)
            done = True
        finally:
            peer.release(moved.lease, done=done)

    async def fetch_into(
        self, item: EcItem, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        """The item scattered into buffers; see `EcConnector.fetch_into`."""
        if self._is_ours(item):
            async with local.lease(self._holder, item, deadline) as grant:
                _expect_size(item, grant.nbytes, into)
                views = self._regions[grant.region].views(grant.spans)
                await run(self._context.executor, grant.nbytes, lambda: scatter(views, into))
            return
        await self._move(item, into, deadline)

    # ---- a peer's item

    async def _move(
        self, item: EcItem, into: Sequence[memoryview] | None, deadline: Deadline
    ) -> tuple[Peer, _Moved]:
        """Have the item here.

        A session that turns out to be dead is replaced once: its peer may be well.
        """
        unreachable: TransferError | None = None
        for last in (False, True):
            try:
                known = len(self.peers)
                peer = await self.peers.get(item, deadline)
                fresh = len(self.peers) != known
                try:
                    return peer, await self._move_from(peer, item, into, deadline)
                except TransferError as error:
                    again = error.kind == "peer_unreachable" and not (fresh or last)
                    if not again or time.monotonic() >= deadline.at:
                        raise
                    unreachable = error
            except DeadlineExceeded as error:
                failure = unreachable or TransferError(error.message, "transport_failed")
                self._metrics.errors.labels(failure.kind).inc()
                raise _named(failure, item) from None
            except TransferError as error:
                self._metrics.errors.labels(error.kind).inc()
                raise _named(error, item) from None
        raise AssertionError

    async def _move_from(
        self, peer: Peer, item: EcItem, into: Sequence[memoryview] | None, deadline: Deadline
    ) -> _Moved:
        """Try the transports, best first; one that fails is dropped for this peer."""
        failure: TransferError | None = None
        candidates = peer.usable(self._transports, item)
        for transport in candidates:
            last = transport is candidates[-1]
            try:
                return await self._move_by(transport, peer, item, into, deadline, last=last)
            except TransferError as error:
                failure = error
                if error.kind == "store_full" and not last:
                    continue  # no registered memory for this one; the next may need none
                if error.kind != "transport_failed":
                    raise
                self._metrics.fallbacks.labels(transport.name).inc()
                if not last:
                    await peer.drop(transport)
        raise failure or TransferError(
            f"no transport in common with {item.peer_host}:{item.peer_port}, which has "
            f"{_listed(peer.capabilities)} where this side has {_listed(self._transports)}",
            "transport_failed",
        )

    async def _move_by(
        self,
        transport: Transport,
        peer: Peer,
        item: EcItem,
        into: Sequence[memoryview] | None,
        deadline: Deadline,
        *,
        last: bool,
    ) -> _Moved:
        started = time.monotonic()
        inline = peer.takes_inline(item, transport)
        if inline:
            channel: Channel = InlineChannel()
        else:
            setup = deadline if last else deadline.within(_SETUP_S)
            link = await peer.link(transport, setup)
            channel = await link.open(item.nbytes, setup)
        moved: _Moved | None = None
        done = False
        try:
            granted, lease = await peer.read(
                item, transport.name, channel.route, deadline, inline=inline
            )
            moved = _Moved(granted, lease)
            self._check(item, granted, into)
            if into is None:
                moved.viewed = await channel.view(granted, deadline)
            if moved.viewed is None:
                # Half of the time is left to the next transport.
                limit = deadline if last else deadline.within(deadline.remaining("transfer") / 2)
                await self._receive(transport, peer, channel, moved, into, limit)
                if granted.checksum is not None:
                    await self._check_sum(transport, moved, into)
                if not transport.pushes:
                    await self._confirm(peer, lease, item)
            done = True
        finally:
            held = moved is None or moved.quarantined or (done and moved.viewed is not None)
            if moved is not None and not held:
                peer.release(moved.lease, done=done)
                if not done and moved.destination is not None:
                    moved.destination.free()
            await channel.close(clean=done)
        self._metrics.moved(transport.name, granted.nbytes, time.monotonic() - started)
        return moved

    async def _receive(
        self,
        transport: Transport,
        peer: Peer,
        channel: Channel,
        moved: _Moved,
        into: Sequence[memoryview] | None,
        deadline: Deadline,
    ) -> None:
        """Receive into the buffers, or into scratch memory where there are none or must not be."""
        granted = moved.granted
        if into is not None and transport.stops_at_once:
            await channel.receive(granted, into, deadline)
            return
        destination = self._scratch.take(granted.nbytes, registered=not transport.stops_at_once)
        try:
            await channel.receive(granted, [destination.buffer], deadline)
        except BaseException:
            if transport.stops_at_once:
                destination.free()
            else:
                # Its lease lasts as long: the producer must go on serving it.
                moved.quarantined = True
                self._scratch.quarantine(
                    destination, channel, lambda: peer.release(moved.lease, done=False)
                )
            raise
        moved.destination = destination
        if into is not None:
            buffers = into
            try:
                await run(
                    self._context.executor,
                    granted.nbytes,
                    lambda: scatter([destination.buffer], buffers),
                )
            finally:
                destination.free()

    def _is_ours(self, item: EcItem) -> bool:
        return bool(item.epoch) and item.epoch == self._context.epoch

    def _check(self, item: EcItem, granted: Granted, into: Sequence[memoryview] | None) -> None:
        """What was granted is what was described, before memory is taken for it."""
        limit = self._context.config.max_item_bytes
        check_form(item.mm_hash, granted.nbytes, granted.shape, granted.dtype, limit)
        form = (granted.nbytes, granted.shape, granted.dtype)
        if item.mac and form != (item.nbytes, item.shape, item.dtype):
            raise TransferError(
                f"item {item.mm_hash} is {granted.dtype}{list(granted.shape)} and not as described",
                "invalid_content",
                (item.mm_hash,),
            )
        if into is not None:
            _expect_size(item, granted.nbytes, into)

    async def _check_sum(
        self, transport: Transport, moved: _Moved, into: Sequence[memoryview] | None
    ) -> None:
        """What arrived is what was published; another transport may do better."""
        granted = moved.granted
        views = into
        if views is None:
            views = [] if moved.destination is None else [moved.destination.buffer]
        data = views[0] if len(views) == 1 else memoryview(b"".join(views))
        actual = await run(self._context.executor, granted.nbytes, lambda: checksum(data))
        if actual != granted.checksum:
            raise TransferError(
                f"{transport.name}: the checksum of the item differs", "transport_failed"
            )

    async def _confirm(self, peer: Peer, lease: HeldLease, item: EcItem) -> None:
        """Bytes that were read while the lease had lapsed may have been overwritten."""
        if not await peer.confirm(lease):
            raise TransferError(
                f"item {item.mm_hash}: the lease lapsed while it was read",
                "expired",
                (item.mm_hash,),
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _named(error: TransferError, item: EcItem) -> TransferError:
    """The error with the item that it is about."""
    if error.items:
        return error
    kind = error.args[1]
    return TransferError(
        f"item {item.mm_hash}: {error.message}", kind, (item.mm_hash,), None, "transfer"
    )


def _expect_size(item: EcItem, nbytes: int, into: Sequence[memoryview]) -> None:
    size = sum(buffer.nbytes for buffer in into)
    if nbytes != size:
        raise TransferError(
            f"item {item.mm_hash} has {nbytes} bytes and {size} were expected",
            "invalid_content",
            (item.mm_hash,),
        )


class _valid:  # noqa: N801 (reads as what it is)
    """A read-only view that fails when used after the block.

    A tensor over it that still lives keeps its memory, not its meaning.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._view = buffer.toreadonly()

    def __enter__(self) -> memoryview:
        return self._view

    def __exit__(self, *_error: object) -> None:
        with suppress(BufferError):
            self._view.release()
