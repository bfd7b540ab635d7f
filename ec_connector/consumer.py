"""Fetching items: whom to ask, which transport, where the bytes go, what to do when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from ec_connector.copying import run, scatter
from ec_connector.descriptors import check_form
from ec_connector.holder import LOCAL_SESSION, STORE_REGION, Ask, Grant, Holder
from ec_connector.messages import Granted
from ec_connector.peer import HeldLease, Peer
from ec_connector.regions import Region
from ec_connector.transports.base import Channel, Context, Transport
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, TransferError, TriptychError
from protocol.transfer import EcItem
from telemetry.ec import EcMetrics

_IDLE_PEER_S = 300.0
_SETUP_S = 3.0
"""Most time a link or channel may take to open while another transport is left to try."""

Place = Callable[[Granted], Sequence[memoryview]]
"""Makes the destination once the size is certain."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An item, valid inside its context only.

    Attributes:
        data: read-only bytes, possibly the producer's own memory.
    """

    data: memoryview
    shape: tuple[int, ...]
    dtype: str


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
        self._config = context.config
        self._holder = holder
        self._regions = regions
        self._transports = transports
        self._metrics = metrics
        self._peers: dict[tuple[str, int], Peer] = {}
        self._connecting: dict[tuple[str, int], asyncio.Lock] = {}

    async def stop(self) -> None:
        """End all sessions."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.close()

    @asynccontextmanager
    async def fetch(self, item: EcItem, deadline: Deadline) -> AsyncIterator[Fetched]:
        """The item as one buffer; see `EcConnector.fetch`."""
        if self._is_ours(item):
            async with self._local(item, deadline) as grant:
                views = self._regions[grant.region].views(grant.spans)
                data = views[0] if len(views) == 1 else memoryview(b"".join(views))
                data = data.toreadonly()
                try:
                    yield Fetched(data, grant.shape, grant.dtype)
                finally:
                    _invalidate(data)
            return
        scratch: list[tuple[memoryview, Callable[[], None]]] = []

        def place(granted: Granted) -> Sequence[memoryview]:
            scratch.append(self._scratch(granted.nbytes, item.mm_hash))
            return [scratch[-1][0]]

        try:
            async with self._remote(item, place, deadline, in_place=True) as (granted, found):
                data = found.toreadonly()
                try:
                    yield Fetched(data, granted.shape, granted.dtype)
                finally:
                    _invalidate(data)
        finally:
            for _, free in scratch:
                free()

    async def fetch_into(
        self, item: EcItem, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        """The item scattered into buffers; see `EcConnector.fetch_into`."""
        size = sum(buffer.nbytes for buffer in into)
        if self._is_ours(item):
            async with self._local(item, deadline) as grant:
                _expect_size(item, grant.nbytes, size)
                views = self._regions[grant.region].views(grant.spans)
                await run(self._context.executor, size, lambda: scatter(views, into))
            return

        def place(granted: Granted) -> Sequence[memoryview]:
            _expect_size(item, granted.nbytes, size)
            return into

        async with self._remote(item, place, deadline, in_place=False):
            pass

    # ---- this process's own items

    def _is_ours(self, item: EcItem) -> bool:
        return bool(item.epoch) and item.epoch == self._context.epoch

    @asynccontextmanager
    async def _local(self, item: EcItem, deadline: Deadline) -> AsyncIterator[Grant]:
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

        def answer(result: Grant | TriptychError) -> None:
            if isinstance(result, TriptychError):
                future.set_exception(result)
            else:
                future.set_result(result)

        ask = Ask(LOCAL_SESSION, item.key, item.mm_hash, answer)
        started = time.monotonic()
        self._holder.acquire(ask, item.epoch, item.expires_at, deadline.remaining("transfer"))
        try:
            grant = await future
        except asyncio.CancelledError:
            self._holder.cancel(ask)
            if future.done() and not future.cancelled() and future.exception() is None:
                self._holder.release(LOCAL_SESSION, future.result().lease.id, done=False)
            raise
        done = False
        try:
            yield grant
            done = True
        finally:
            self._holder.release(LOCAL_SESSION, grant.lease.id, done=done)
            self._observe("local", grant.nbytes, started)

    # ---- peers' items

    @asynccontextmanager
    async def _remote(
        self, item: EcItem, place: Place, deadline: Deadline, *, in_place: bool
    ) -> AsyncIterator[tuple[Granted, memoryview]]:
        """The granted item: where it is, if `in_place` and possible, or in `place(granted)`.

        The lease is checked once more at the end: bytes that were used or copied while it had
        lapsed may have been overwritten, so then the whole context fails.
        """
        peer = await self._peer(item, deadline)
        granted, lease, channel, data = await self._move(
            peer, item, place, deadline, in_place=in_place
        )
        done = False
        try:
            yield granted, data
            if not await peer.confirm(lease):
                raise TransferError(
                    f"item {item.mm_hash}: the lease lapsed while it was read",
                    "expired",
                    (item.mm_hash,),
                )
            done = True
        finally:
            peer.release(lease, done=done)
            await channel.close(clean=True)

    async def _move(
        self, peer: Peer, item: EcItem, place: Place, deadline: Deadline, *, in_place: bool
    ) -> tuple[Granted, HeldLease, Channel, memoryview]:
        """Try the transports, best first; one that fails is dropped for this peer."""
        failure: TransferError | None = None
        candidates = peer.usable(self._transports, item)
        for index, transport in enumerate(candidates):
            last = index == len(candidates) - 1
            try:
                return await self._move_by(
                    transport, peer, item, place, deadline, in_place=in_place, last=last
                )
            except DeadlineExceeded as error:
                failure = _named(TransferError(error.message, "transport_failed"), item)
                break
            except TransferError as error:
                failure = _named(error, item)
                if error.kind != "transport_failed":
                    self._metrics.errors.labels(error.kind).inc()
                    raise failure from None
                self._metrics.fallbacks.labels(transport.name).inc()
                if not last:
                    await peer.drop(transport)
        self._metrics.errors.labels("transport_failed").inc()
        raise failure or TransferError(
            f"item {item.mm_hash}: no transport in common with {item.peer_host}:{item.peer_port}",
            "transport_failed",
            (item.mm_hash,),
        )

    async def _move_by(
        self,
        transport: Transport,
        peer: Peer,
        item: EcItem,
        place: Place,
        deadline: Deadline,
        *,
        in_place: bool,
        last: bool,
    ) -> tuple[Granted, HeldLease, Channel, memoryview]:
        started = time.monotonic()
        setup = deadline if last else deadline.within(_SETUP_S)
        link = await peer.link(transport, setup)
        channel = await link.open(item.nbytes, setup)
        lease: HeldLease | None = None
        try:
            granted, lease = await peer.read(item, transport.name, channel.route, deadline)
            self._check(item, granted)
            data = await channel.view(granted, deadline) if in_place else None
            if data is None:
                buffers = place(granted)
                await channel.receive(granted, buffers, deadline)
                data = buffers[0]
        except BaseException:
            if lease is not None:
                peer.release(lease, done=False)
            await channel.close(clean=False)
            raise
        self._observe(transport.name, granted.nbytes, started)
        return granted, lease, channel, data

    def _check(self, item: EcItem, granted: Granted) -> None:
        check_form(
            item.mm_hash,
            granted.nbytes,
            granted.shape,
            granted.dtype,
            self._config.max_item_bytes,
        )
        form = (granted.nbytes, granted.shape, granted.dtype)
        if item.mac and form != (item.nbytes, item.shape, item.dtype):
            raise TransferError(
                f"item {item.mm_hash} is {granted.dtype}{list(granted.shape)} and not as described",
                "invalid_content",
                (item.mm_hash,),
            )

    async def _peer(self, item: EcItem, deadline: Deadline) -> Peer:
        """The open session with the item's holder, connected if need be."""
        address = (item.peer_host, item.peer_port)
        peer = self._peers.get(address)
        if peer is None or not peer.is_open:
            async with self._connecting.setdefault(address, asyncio.Lock()):
                peer = self._peers.get(address)
                if peer is None or not peer.is_open:
                    peer = await self._connect(address, item, peer, deadline)
        if item.epoch and peer.info.epoch != item.epoch:
            raise TransferError(
                f"item {item.mm_hash}: its holder has restarted", "expired", (item.mm_hash,)
            )
        return peer

    async def _connect(
        self, address: tuple[str, int], item: EcItem, old: Peer | None, deadline: Deadline
    ) -> Peer:
        context = self._context
        await self._forget_idle()
        if old is not None:
            await old.close()
        try:
            peer = await Peer.connect(
                address, self._config, context.secret, context.fingerprint, deadline
            )
        except TransferError as error:
            self._peers.pop(address, None)
            self._metrics.errors.labels(error.kind).inc()
            raise _named(error, item) from None
        self._peers[address] = peer
        return peer

    async def _forget_idle(self) -> None:
        """End sessions that nobody has used for long, so that peers may come and go."""
        before = time.monotonic() - _IDLE_PEER_S
        for address, peer in list(self._peers.items()):
            if peer.is_idle and peer.used_at < before:
                del self._peers[address]
                self._connecting.pop(address, None)
                await peer.close()

    def _scratch(self, nbytes: int, mm_hash: str) -> tuple[memoryview, Callable[[], None]]:
        """Registered memory for a fetch, or plain memory where the store is full."""
        store = self._holder.store
        try:
            scratch = store.take_scratch(nbytes, time.monotonic(), mm_hash)
        except TransferError:
            return memoryview(bytearray(nbytes)), lambda: None
        buffer = self._regions[STORE_REGION].buffer[scratch.offset : scratch.offset + nbytes]
        return buffer, lambda: store.free_scratch(scratch)

    def _observe(self, transport: str, nbytes: int, started: float) -> None:
        self._metrics.transfer_seconds.labels(transport).observe(time.monotonic() - started)
        self._metrics.transfer_bytes.labels(transport).observe(nbytes)


def _named(error: TransferError, item: EcItem) -> TransferError:
    """The error with the item that it is about."""
    if error.items:
        return error
    return TransferError(
        f"item {item.mm_hash}: {error.message}",
        error.args[1],
        (item.mm_hash,),
        None,
        "transfer",
    )


def _expect_size(item: EcItem, nbytes: int, size: int) -> None:
    if nbytes != size:
        raise TransferError(
            f"item {item.mm_hash} has {nbytes} bytes and {size} were expected",
            "invalid_content",
            (item.mm_hash,),
        )


def _invalidate(view: memoryview) -> None:
    """Make later use fail; a tensor over it that still lives keeps its memory, not its meaning."""
    with suppress(BufferError):
        view.release()
