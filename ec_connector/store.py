"""The store of items: which bytes of one region belong to which key. Pure, no I/O, no bytes.

    expected ──begin──▶ filling ──commit──▶ ready ──evicted──▶ gone
        └──────fail, expiry──────▶ gone ◀──abandon── (filling)

An entry is pinned while it is being filled, while its holder promised to keep it (`held_until`)
and while somebody reads it (`pins`). Space for new entries is made by evicting unpinned ready
entries, least recently used first. The clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ec_connector.allocator import Allocator
from protocol.errors import InternalError, TransferError

State = Literal["expected", "filling", "ready", "gone"]
W = TypeVar("W")


@dataclass(slots=True, eq=False)
class Entry(Generic[W]):
    """One item of the store.

    Attributes:
        offset: where it is in the region, meaningful while filling and ready.
        held_until: the end of the publish lease, or of an expectation.
        pins: read leases and pushes under way.
        waiters: tokens of those who wait for it to become ready.
    """

    key: str
    mm_hash: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    state: State
    held_until: float
    offset: int = 0
    pins: int = 0
    checksum: int | None = None
    waiters: list[W] = field(default_factory=list)

    def is_pinned(self, now: float) -> bool:
        return self.state == "filling" or self.pins > 0 or self.held_until > now


@dataclass(slots=True, frozen=True)
class Scratch:
    """A range of the region that is nobody's entry: the destination of a fetch."""

    offset: int
    nbytes: int


class EmbeddingStore(Generic[W]):
    """Entries by key in a region of `capacity` bytes; `W` is the type of a waiter's token.

    Attributes:
        evictions: entries evicted so far.
        on_evicted: told the key of each.
    """

    def __init__(self, capacity: int) -> None:
        self._space = Allocator(capacity)
        self._entries: OrderedDict[str, Entry[W]] = OrderedDict()  # least recently used first
        self.evictions = 0
        self.on_evicted: Callable[[str], None] = lambda _key: None

    @property
    def used(self) -> int:
        """Bytes taken, alignment included."""
        return self._space.used

    @property
    def capacity(self) -> int:
        return self._space.capacity

    def __len__(self) -> int:
        return len(self._entries)

    def pinned(self, now: float) -> int:
        """Number of entries that cannot be evicted now."""
        return sum(entry.is_pinned(now) for entry in self._entries.values())

    def find(self, key: str) -> Entry[W] | None:
        """The entry in whatever state, marked as used; None where there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def expect(self, entry: Entry[W]) -> Entry[W]:
        """Announce an item; the entry that is there already is kept and held at least as long."""
        present = self.find(entry.key)
        if present is not None:
            present.held_until = max(present.held_until, entry.held_until)
            return present
        self._entries[entry.key] = entry
        return entry

    def begin(self, entry: Entry[W], now: float) -> Entry[W]:
        """Allocate space for an item that is absent or expected; it is then `filling`.

        Raises:
            TransferError: `store_full`; an expectation stays as it was.
        """
        present = self._entries.get(entry.key)
        if present is not None and present.state != "expected":
            raise InternalError(f"entry {entry.key} is {present.state} and cannot be filled")
        offset = self._make_room(entry.nbytes, now, entry.mm_hash)
        if present is not None:
            entry.waiters = present.waiters
            entry.held_until = max(entry.held_until, present.held_until)
            present.state, present.waiters = "gone", []
        entry.offset, entry.state = offset, "filling"
        self._entries[entry.key] = entry
        self._entries.move_to_end(entry.key)
        return entry

    def commit(self, entry: Entry[W], held_until: float) -> list[W]:
        """The bytes of a filling entry are there; returns who waited for them."""
        if entry.state != "filling":
            raise InternalError(f"entry {entry.key} is {entry.state} and cannot be committed")
        entry.state, entry.held_until = "ready", max(entry.held_until, held_until)
        woken, entry.waiters = entry.waiters, []
        return woken

    def remove(self, entry: Entry[W]) -> list[W]:
        """Forget an unpinned, expected or filling entry; returns who waited for it."""
        if entry.pins:
            raise InternalError(f"entry {entry.key} is read and cannot be removed")
        if entry.state in {"filling", "ready"}:
            self._space.free(entry.offset, entry.nbytes)
        entry.state = "gone"
        del self._entries[entry.key]
        woken, entry.waiters = entry.waiters, []
        return woken

    def expire(self, now: float) -> list[Entry[W]]:
        """Entries whose expectation is over; the caller removes them."""
        return [
            entry
            for entry in self._entries.values()
            if entry.state == "expected" and entry.held_until <= now
        ]

    def take_scratch(self, nbytes: int, now: float, mm_hash: str) -> Scratch:
        """A range for the destination of a fetch.

        Raises:
            TransferError: `store_full`.
        """
        return Scratch(self._make_room(nbytes, now, mm_hash), nbytes)

    def free_scratch(self, scratch: Scratch) -> None:
        """Give the range back."""
        self._space.free(scratch.offset, scratch.nbytes)

    def _make_room(self, nbytes: int, now: float, mm_hash: str) -> int:
        if nbytes <= self.capacity:
            offset = self._space.allocate(nbytes)
            if offset is not None:
                return offset
            for entry in list(self._entries.values()):
                if entry.state == "ready" and not entry.is_pinned(now):
                    self.remove(entry)
                    self.evictions += 1
                    self.on_evicted(entry.key)
                    offset = self._space.allocate(nbytes)
                    if offset is not None:
                        return offset
        raise TransferError(
            f"no room for {nbytes} bytes: {self.used} of {self.capacity} are in use",
            "store_full",
            (mm_hash,),
        )
