"""The EC connector of one process: what render and workers use.

Composition root of the package: one region, one holder, one exchange, one consumer, and the
transports that can be used here.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ec_connector.config import EcConfig
from ec_connector.consumer import Consumer, Fetched
from ec_connector.content import fill
from ec_connector.copying import as_bytes, run
from ec_connector.descriptors import Describer, Gate, Signer, check_form
from ec_connector.encryption import Encryption
from ec_connector.handshake import Secret
from ec_connector.holder import STORE_REGION, Holder
from ec_connector.keys import item_key
from ec_connector.memory import Memory
from ec_connector.regions import Region
from ec_connector.server import ExchangeServer
from ec_connector.transports import load
from ec_connector.transports.base import Context, Transport
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TransferError
from protocol.transfer import EcItem
from telemetry.ec import EcMetrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a process holds now.

    Attributes:
        pinned: entries that cannot be evicted.
        leases: read leases that are open, this process's own included.
    """

    used_bytes: int
    capacity_bytes: int
    entries: int
    pinned: int
    offers: int
    leases: int


class EcConnector:
    """Publishes, offers and fetches items; used on one event loop.

    Args:
        config: addresses, sizes, the cluster token.
        fingerprint: of what this process's items are made with; part of their keys.
        registry: where metrics go, a private one if None.
    """

    def __init__(
        self, config: EcConfig, fingerprint: str, registry: CollectorRegistry | None = None
    ) -> None:
        self._config = config
        self._fingerprint = fingerprint
        self._epoch = secrets.token_hex(8)
        signer = Signer(config.cluster_token)
        self._gate = Gate(config, signer)
        self._metrics = EcMetrics(registry or CollectorRegistry())
        self._holder = Holder(
            fingerprint, self._epoch, config.capacity_bytes, config.lease_s, self._metrics
        )
        self._executor = ThreadPoolExecutor(config.threads, thread_name_prefix="ec")
        self._transports: dict[str, Transport] = {}
        self._memory = Memory(self._transports, pinned=config.memory == "pinned")
        self._describer = Describer(config, signer, self._epoch, self._memory)
        regions = self._memory.regions
        secret = Secret(config.cluster_token)
        encryption = Encryption.of(config)
        self._server = ExchangeServer(
            config, secret, encryption, self._holder, regions, self._transports
        )
        self._context = Context(
            config,
            secret,
            self._epoch,
            fingerprint,
            encryption,
            self._executor,
            self._server.announce,
        )
        self._consumer = Consumer(
            self._context, self._holder, regions, self._transports, self._metrics
        )
        self._stopped = False
        self._metrics.watch(
            used=lambda: self._holder.store.used,
            capacity=lambda: self._holder.store.capacity,
            entries=lambda: len(self._holder.store),
            pinned=lambda: self._holder.store.pinned(time.monotonic()),
            offers=lambda: len(self._holder.offers),
            leases=lambda: len(self._holder.leases),
        )
        self.unavailable: dict[str, str] = {}
        """Transport -> why it is not used here."""

    @property
    def host(self) -> str:
        """The host that descriptors name."""
        return self._config.advertised

    @property
    def port(self) -> int:
        """The port that descriptors name; 0 before `start`."""
        return self._describer.port

    @property
    def epoch(self) -> str:
        """Random id of this connector's life."""
        return self._epoch

    @property
    def transports(self) -> tuple[str, ...]:
        """Names of the transports in use, best first."""
        return tuple(self._transports)

    async def start(self) -> None:
        """Take the memory, start the transports that work here, listen.

        Raises:
            InvalidRequest: a setting that cannot work; names it. Nothing is left open then.
        """
        self._config.check_usable()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        classes, self.unavailable = load(self._config.transports)
        for cls in classes:
            unwanted = None if self._config.transports else cls.unwanted()
            if unwanted is not None:
                self.unavailable[cls.name] = unwanted
                continue
            transport = cls(self._context)
            try:
                await transport.start()
            except TransferError as error:
                self.unavailable[cls.name] = error.message
                if self._config.transports:
                    raise InvalidRequest(
                        f"transport {cls.name} cannot be used here: {error.message}",
                        "ec.transports",
                    ) from None
            else:
                self._transports[transport.name] = transport
        if not self._config.transports:
            ordered = sorted(self._transports.items(), key=lambda item: item[1].rank)
            self._transports.clear()
            self._transports.update(ordered)
        self._memory.add("store", self.allocate(self._config.capacity_bytes))
        for transport in self._transports.values():
            await transport.ready()
        self._describer.port = await self._server.start()
        _log.info("exchange on %s:%d over %s", self.host, self.port, ", ".join(self._transports))

    async def stop(self, drain_s: float = 0.0) -> None:
        """Wait up to `drain_s` for readers to finish, then close everything and free the memory.

        A second call does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        await self._holder.drained(drain_s)
        await self._consumer.stop()
        await self._server.stop()
        for transport in self._transports.values():
            await transport.stop()
        self._holder.stop()
        self._executor.shutdown(wait=True)
        self._memory.close()

    # ---- producer

    async def publish(
        self,
        mm_hash: str,
        data: memoryview | bytes,
        *,
        shape: tuple[int, ...],
        dtype: str,
        salt: str = "",
        lease_s: float | None = None,
    ) -> EcItem:
        """Put an item into the store (one copy) and keep it for `lease_s`.

        An item that is there already is kept instead.

        Raises:
            TransferError: `store_full`; `invalid_content`: size, shape and dtype disagree, or a
                value is not finite.
        """
        source = as_bytes(data)
        nbytes = check_form(mm_hash, source.nbytes, shape, dtype, self._config.max_item_bytes)
        until, expires_at = self._describer.until(lease_s)
        form = (nbytes, shape, dtype)
        entry, fresh = await self._holder.begin(mm_hash, form, salt, until)
        if fresh:
            region = self._memory.regions[STORE_REGION]
            destination = region.buffer[entry.offset : entry.offset + nbytes]
            try:
                entry.checksum = await run(
                    self._executor,
                    nbytes,
                    lambda: fill(mm_hash, source, destination, dtype, self._config),
                )
            except BaseException as error:
                gone = TransferError("publishing was given up", "missing", (mm_hash,))
                self._holder.abandon(entry, error if isinstance(error, TransferError) else gone)
                raise
            self._holder.commit(entry, until)
        return self._describer.describe(mm_hash, entry.key, form, expires_at, STORE_REGION)

    def held(self, mm_hash: str, salt: str = "", lease_s: float | None = None) -> EcItem | None:
        """A fresh descriptor of an item that is in the store, now kept for `lease_s`, or None."""
        until, expires_at = self._describer.until(lease_s)
        entry = self._holder.held(item_key(self._fingerprint, salt, mm_hash), until)
        if entry is None:
            return None
        form = (entry.nbytes, entry.shape, entry.dtype)
        return self._describer.describe(mm_hash, entry.key, form, expires_at, STORE_REGION)

    def expect(
        self,
        mm_hash: str,
        *,
        shape: tuple[int, ...],
        dtype: str,
        salt: str = "",
        lease_s: float | None = None,
    ) -> EcItem:
        """A descriptor of an item whose encode is in flight: a fetch of it waits.

        After `lease_s` without `publish` or `fail` those who wait get `missing`.

        Raises:
            TransferError: `invalid_content`.
        """
        nbytes = check_form(mm_hash, None, shape, dtype, self._config.max_item_bytes)
        until, expires_at = self._describer.until(lease_s)
        form = (nbytes, shape, dtype)
        key = self._holder.expect(mm_hash, form, salt, until)
        return self._describer.describe(mm_hash, key, form, expires_at, STORE_REGION)

    def on_evicted(self, listener: Callable[[str], None]) -> None:
        """Have the listener told the key of each item that is evicted from the store."""
        self._holder.store.on_evicted = listener

    def fail(self, mm_hash: str, error: TransferError, salt: str = "") -> None:
        """An expected item will not come: who waits for it gets the error."""
        self._holder.fail(item_key(self._fingerprint, salt, mm_hash), error)

    def retire(self, keys: Iterable[str]) -> None:
        """End the publish leases and offers of these keys now; unknown ones are ignored."""
        self._holder.retire(keys)

    # ---- regions

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed memory that every transport can read from; it lives until `stop`."""
        return self._memory.allocate(nbytes)

    def prefault(self) -> None:
        """Take all pages of allocated memory now (a second per few GiB), so that no item pays."""
        self._memory.prefault()

    def register(self, name: str, buffer: memoryview) -> Region:
        """Take in writable memory to offer from and receive into, for example a KV cache.

        Memory from `allocate` can be used by every transport, other memory by fewer.

        Raises:
            InvalidRequest: the buffer is read-only or not contiguous.
        """
        if buffer.readonly or not buffer.c_contiguous:
            raise InvalidRequest(f"region {name} must be writable and contiguous", name)
        region = self._memory.add(name, as_bytes(buffer))
        self._server.announce()
        return region

    def offer(
        self,
        name: str,
        region: Region,
        spans: Sequence[tuple[int, int]],
        *,
        shape: tuple[int, ...],
        dtype: str,
        lease_s: float | None = None,
        on_release: Callable[[], None],
    ) -> EcItem:
        """Let one consumer read (offset, nbytes) spans of a region, concatenated.

        `on_release` is called exactly once, on the loop: after a consumer has read it to the end,
        or it was retired, or `lease_s` is over, and nobody reads it any more.

        Raises:
            TransferError: `invalid_content`: the spans are not in the region or not of the shape.
        """
        total = sum(nbytes for _, nbytes in spans)
        inside = all(
            offset >= 0 and nbytes > 0 and offset + nbytes <= region.buffer.nbytes
            for offset, nbytes in spans
        )
        if not inside:
            raise TransferError(
                f"spans of {name} are not in the region", "invalid_content", (name,)
            )
        nbytes = check_form(name, total, shape, dtype, self._config.max_item_bytes)
        until, expires_at = self._describer.until(lease_s)
        form = (nbytes, shape, dtype)
        offer = self._holder.offer(name, region.id, tuple(spans), form, until, on_release)
        return self._describer.describe(name, offer.key, form, expires_at, region.id)

    # ---- consumer

    def fetch(
        self, item: EcItem, deadline: Deadline, *, fingerprint: str | None = None
    ) -> AbstractAsyncContextManager[Fetched]:
        """The item as one read-only buffer, valid inside the context.

        Leaving the context releases the lease and raises `expired` if it lapsed meanwhile: then
        what was computed from the bytes must not be used. An item that is being encoded is waited
        for.

        Args:
            fingerprint: what the item must be made with; None to leave that to the caller.

        Raises:
            InvalidRequest: the descriptor is forged, or unsigned and of a host not allowed.
            DeadlineExceeded: the time was over before anything was done.
            TransferError: by kind.
        """
        deadline.remaining("transfer")
        self._gate.check(item, fingerprint)
        return self._consumer.fetch(item, deadline)

    async def fetch_into(
        self,
        item: EcItem,
        into: Sequence[memoryview],
        deadline: Deadline,
        *,
        fingerprint: str | None = None,
    ) -> None:
        """Scatter the item into writable buffers, in order, and release it.

        When it raises, the buffers hold anything, and nothing writes to them any more.

        Raises:
            InvalidRequest, DeadlineExceeded, TransferError: as `fetch`; `invalid_content` for
                another total size.
        """
        deadline.remaining("transfer")
        self._gate.check(item, fingerprint)
        await self._consumer.fetch_into(item, [as_bytes(buffer) for buffer in into], deadline)

    def stats(self) -> StoreStats:
        """Counts for status and tests."""
        holder = self._holder
        return StoreStats(
            holder.store.used,
            holder.store.capacity,
            len(holder.store),
            holder.store.pinned(time.monotonic()),
            len(holder.offers),
            len(holder.leases),
        )
