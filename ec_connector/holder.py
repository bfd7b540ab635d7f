"""The producer's state, driven: store, offers and leases of one process, on its event loop.

All methods run on the loop. Whoever asks for an item (a session of the exchange, or this process
itself) passes a callback, which is called at once or when the item becomes ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ec_connector.keys import belongs_to, item_key, offer_key
from ec_connector.leases import Lease, LeaseTable, Target
from ec_connector.offers import Offer, OfferTable
from ec_connector.store import EmbeddingStore, Entry
from protocol.errors import TransferError, TransferKind, TriptychError
from telemetry.ec import EcMetrics

LOCAL_SESSION = 0
"""The session of this process itself; its leases end with their context only."""

STORE_REGION = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease with where its bytes are."""

    lease: Lease
    region: int
    spans: tuple[tuple[int, int], ...]
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    checksum: int | None


Answer = Callable[[Grant | TriptychError], None]


class Ask:
    """One request for an item, from arrival to answer or cancellation."""

    __slots__ = ("answer", "done", "key", "mm_hash", "session", "timer")

    def __init__(self, session: int, key: str, mm_hash: str, answer: Answer) -> None:
        self.session = session
        self.key = key
        self.mm_hash = mm_hash
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None
        self.done = False

    def reply(self, result: Grant | TriptychError) -> None:
        """Answer once, unless the asker is gone."""
        if not self.done:
            self.cancel()
            self.answer(result)

    def cancel(self) -> None:
        """The asker is gone or has its answer."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()


class Holder:
    """What this process holds for its peers.

    Args:
        fingerprint: goes into keys.
        capacity: bytes of the store.
        lease_s: length of read leases.
    """

    def __init__(
        self, fingerprint: str, epoch: str, capacity: int, lease_s: float, metrics: EcMetrics
    ) -> None:
        self.fingerprint = fingerprint
        self.epoch = epoch
        self.lease_s = lease_s
        self.store: EmbeddingStore[Ask] = EmbeddingStore(capacity)
        self.offers = OfferTable()
        self.leases = LeaseTable()
        self.on_lapse: Callable[[bytes], None] = lambda _lease: None
        self._metrics = metrics
        self._filled: dict[str, asyncio.Event] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Event | None = None

    # ---- producer

    def expect(
        self, mm_hash: str, form: tuple[int, tuple[int, ...], str], salt: str, until: float
    ) -> str:
        """Announce an item of (nbytes, shape, dtype); returns its key."""
        key = item_key(self.fingerprint, salt, mm_hash)
        nbytes, shape, dtype = form
        self.store.expect(Entry(key, mm_hash, nbytes, shape, dtype, "expected", until))
        self._wake_at(until)
        return key

    async def begin(
        self, mm_hash: str, form: tuple[int, tuple[int, ...], str], salt: str, until: float
    ) -> tuple[Entry[Ask], bool]:
        """An entry to fill, or (with False) the one that is there already, held until `until`.

        Raises:
            TransferError: `store_full`; `invalid_content` where it was announced otherwise.
        """
        key = item_key(self.fingerprint, salt, mm_hash)
        nbytes, shape, dtype = form
        while (entry := self.store.find(key)) is not None:
            if (entry.nbytes, entry.shape, entry.dtype) != form:
                raise TransferError(
                    f"item {mm_hash} is {dtype}{list(shape)} here and was "
                    f"{entry.dtype}{list(entry.shape)} before",
                    "invalid_content",
                    (mm_hash,),
                )
            if entry.state == "ready":
                entry.held_until = max(entry.held_until, until)
                return entry, False
            if entry.state == "expected":
                break
            await self._filled.setdefault(key, asyncio.Event()).wait()
        fresh: Entry[Ask] = Entry(key, mm_hash, nbytes, shape, dtype, "filling", until)
        evicted = self.store.evictions
        try:
            return self.store.begin(fresh, time.monotonic()), True
        finally:
            self._metrics.evictions.inc(self.store.evictions - evicted)

    def commit(self, entry: Entry[Ask], until: float) -> None:
        """The bytes of an entry from `begin` are in place."""
        for ask in self.store.commit(entry, until):
            self._grant(ask, entry)
        self._settle_filled(entry.key)

    def abandon(self, entry: Entry[Ask], error: TriptychError) -> None:
        """They will not come; who waits gets the error."""
        for ask in self.store.remove(entry):
            ask.reply(error)
        self._settle_filled(entry.key)

    def fail(self, key: str, error: TriptychError) -> None:
        """An announced item will not come."""
        entry = self.store.find(key)
        if entry is not None and entry.state == "expected":
            self.abandon(entry, error)

    def held(self, key: str, until: float) -> Entry[Ask] | None:
        """The ready entry of a key, held at least until `until`."""
        entry = self.store.find(key)
        if entry is None or entry.state != "ready":
            return None
        entry.held_until = max(entry.held_until, until)
        return entry

    def offer(
        self,
        name: str,
        region: int,
        spans: tuple[tuple[int, int], ...],
        form: tuple[int, tuple[int, ...], str],
        until: float,
        on_release: Callable[[], None],
    ) -> Offer:
        """Let one consumer read spans of a region."""
        nbytes, shape, dtype = form
        key = offer_key(self.fingerprint)
        offer = Offer(key, name, region, spans, nbytes, shape, dtype, until, on_release)
        self.offers.add(offer)
        self._wake_at(until)
        return offer

    def retire(self, keys: Iterable[str]) -> None:
        """End publish leases and offers now; unknown keys are ignored."""
        for key in keys:
            entry = self.store.find(key)
            if entry is not None and entry.state == "ready":
                entry.held_until = 0.0
            self._release(self.offers.end(key))

    # ---- consumer

    def acquire(self, ask: Ask, epoch: str, expires_at: float, wait_s: float) -> None:
        """Grant a lease: at once, or when the item is ready, or answer why not."""
        if epoch and epoch != self.epoch:
            self._refuse(ask, "the holder has restarted since", "expired")
            return
        key = ask.key or item_key(self.fingerprint, "", ask.mm_hash)
        if not belongs_to(key, self.fingerprint):
            self._refuse(ask, "the item is of another model, dtype or layout", "incompatible")
            return
        offer = self.offers.find(key)
        if offer is not None:
            self._grant(ask, offer)
            return
        entry = self.store.find(key)
        if entry is None:
            over = 0 < expires_at < time.time() or "/offer/" in key
            self._refuse(ask, "the item is not here", "expired" if over else "missing")
        elif entry.state == "ready":
            self._metrics.hits.inc()
            self._grant(ask, entry)
        else:
            self._metrics.waits.inc()
            entry.waiters.append(ask)
            ask.timer = asyncio.get_running_loop().call_later(wait_s, self._give_up, ask, entry)

    def cancel(self, ask: Ask) -> None:
        """The asker no longer waits."""
        ask.cancel()
        entry = self.store.find(ask.key or item_key(self.fingerprint, "", ask.mm_hash))
        if entry is not None and ask in entry.waiters:
            entry.waiters.remove(ask)

    def release(self, session: int, lease: bytes, *, done: bool) -> None:
        """End a lease; an offer that was read to its end is over."""
        target = self.leases.release(session, lease)
        if target is not None:
            self._unpinned(target, done=done)

    def end_session(self, session: int) -> None:
        """End all leases of a consumer that is gone."""
        for target in self.leases.end_session(session):
            self._unpinned(target, done=False)

    def unpin(self, target: Target) -> None:
        """Undo one `target.pins += 1` of a push that has ended."""
        target.pins -= 1
        self._unpinned(target, done=False)

    # ---- time

    def sweep(self) -> None:
        """End what is over; reschedules itself."""
        now = time.monotonic()
        for lease in self.leases.expire(now):
            self._metrics.leases_expired.inc()
            self.on_lapse(lease.id)
            self._unpinned(lease.target, done=False)
        for entry in self.store.expire(now):
            self.abandon(
                entry,
                TransferError("the item was not encoded in time", "missing", (entry.mm_hash,)),
            )
        self._release(self.offers.expire(now))
        self._sweeper = None
        if len(self.leases) or len(self.offers) or self._filled or len(self.store):
            self._wake_at(now + min(1.0, self.lease_s / 4))

    async def drained(self, limit_s: float) -> None:
        """Wait until nobody reads and nothing is offered, at most `limit_s`."""
        if limit_s > 0 and not self._is_quiet():
            self._quiet = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._quiet.wait()

    def _is_quiet(self) -> bool:
        return not len(self.leases) and not len(self.offers)

    def stop(self) -> None:
        """Release all offers and answer all who wait."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for offer in self.offers.drain():
            offer.on_release()

    def _wake_at(self, when: float) -> None:
        """Have `sweep` run soon after; sweeps are at most a second apart, so no exact time."""
        if self._sweeper is None:
            delay = min(max(0.01, when - time.monotonic()), 1.0, self.lease_s / 4)
            self._sweeper = asyncio.get_running_loop().call_later(delay, self.sweep)

    def _grant(self, ask: Ask, target: Entry[Ask] | Offer) -> None:
        if ask.done:
            return
        now = time.monotonic()
        until = float("inf") if ask.session == LOCAL_SESSION else now + self.lease_s
        lease = self.leases.grant(ask.session, target, until)
        self._wake_at(until)
        if isinstance(target, Offer):
            region, spans, checksum = target.region, target.spans, None
        else:
            region, spans = STORE_REGION, ((target.offset, target.nbytes),)
            checksum = target.checksum
        ask.reply(Grant(lease, region, spans, target.nbytes, target.shape, target.dtype, checksum))

    def _give_up(self, ask: Ask, entry: Entry[Ask]) -> None:
        if ask in entry.waiters:
            entry.waiters.remove(ask)
        self._refuse(ask, "the item was not encoded in time", "missing")

    def _refuse(self, ask: Ask, why: str, kind: TransferKind) -> None:
        self._metrics.errors.labels(kind).inc()
        ask.reply(TransferError(f"item {ask.mm_hash}: {why}", kind, (ask.mm_hash,)))

    def _unpinned(self, target: Target, *, done: bool) -> None:
        if isinstance(target, Offer):
            target.ended |= done
        self._release(self.offers.settle(target) if isinstance(target, Offer) else ())

    def _release(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            offer.on_release()
        if self._quiet is not None and self._is_quiet():
            self._quiet.set()

    def _settle_filled(self, key: str) -> None:
        event = self._filled.pop(key, None)
        if event is not None:
            event.set()
