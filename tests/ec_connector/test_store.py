from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ec_connector.allocator import ALIGNMENT, Allocator
from ec_connector.leases import Lease, LeaseTable
from ec_connector.store import EmbeddingStore, Entry, Scratch
from protocol.errors import InternalError, TransferError


def entry(key: str, nbytes: int, until: float = 0.0) -> Entry[str]:
    return Entry(key, f"hash of {key}", nbytes, (nbytes,), "uint8", "expected", until)


def fill(store: EmbeddingStore[str], key: str, nbytes: int, now: float = 0.0) -> Entry[str]:
    made = store.begin(entry(key, nbytes), now)
    store.commit(made, 0.0)
    return made


def test_allocator_joins_neighbours_when_they_are_freed() -> None:
    space = Allocator(4 * ALIGNMENT)
    offsets = [space.allocate(1) for _ in range(4)]
    assert offsets == [0, ALIGNMENT, 2 * ALIGNMENT, 3 * ALIGNMENT]
    assert space.allocate(1) is None
    for index in (1, 3, 0, 2):
        space.free(index * ALIGNMENT, 1)
    assert space.allocate(4 * ALIGNMENT) == 0


def test_least_recently_used_unpinned_entry_makes_room() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(3 * ALIGNMENT)
    for key in "abc":
        fill(store, key, ALIGNMENT)
    store.find("a")
    fill(store, "d", ALIGNMENT)
    assert store.find("b") is None
    assert store.find("a") is not None
    assert store.evictions == 1


def test_pinned_entries_stay_and_the_store_says_full() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(2 * ALIGNMENT)
    read = fill(store, "read", ALIGNMENT)
    read.pins += 1
    held = fill(store, "held", ALIGNMENT)
    held.held_until = 10.0
    with pytest.raises(TransferError) as caught:
        store.begin(entry("new", 1), 5.0)
    assert caught.value.kind == "store_full"
    assert caught.value.items == ("hash of new",)
    assert store.begin(entry("new", 1), 11.0).offset == held.offset


def test_an_item_larger_than_the_store_evicts_nothing() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(ALIGNMENT)
    fill(store, "a", 1)
    with pytest.raises(TransferError):
        store.begin(entry("huge", ALIGNMENT + 1), 0.0)
    assert store.find("a") is not None


def test_waiters_of_an_expected_item_are_woken_when_it_is_there() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(ALIGNMENT)
    expected = store.expect(entry("a", 8, until=5.0))
    expected.waiters.append("w1")
    filling = store.begin(entry("a", 8), 0.0)
    filling.waiters.append("w2")
    assert store.commit(filling, 1.0) == ["w1", "w2"]
    assert filling.held_until == 5.0


def test_an_expectation_that_is_over_is_reported() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(ALIGNMENT)
    expected = store.expect(entry("a", 8, until=5.0))
    assert store.expire(4.9) == []
    assert store.expire(5.0) == [expected]


def test_wrong_transitions_are_faults() -> None:
    store: EmbeddingStore[str] = EmbeddingStore(ALIGNMENT)
    ready = fill(store, "a", 8)
    ready.pins += 1
    for wrong in (
        lambda: store.begin(entry("a", 8), 0.0),
        lambda: store.commit(ready, 0.0),
        lambda: store.remove(ready),
    ):
        with pytest.raises(InternalError):
            wrong()


KEYS = st.sampled_from([f"k{i}" for i in range(6)])
SIZES = st.integers(1, 5 * ALIGNMENT)


class StoreAndLeases(RuleBasedStateMachine):
    """Any order of publishes, reads, releases, expiries and lost sessions."""

    @initialize()
    def begin_empty(self) -> None:
        self.now = 0.0
        self.store: EmbeddingStore[str] = EmbeddingStore(8 * ALIGNMENT)
        self.table = LeaseTable()
        self.filling: dict[str, Entry[str]] = {}
        self.ready: dict[str, Entry[str]] = {}
        self.scratch: list[Scratch] = []
        self.leases: dict[bytes, Lease] = {}
        self.contents: dict[int, str] = {}  # offset -> who wrote there last

    @rule(seconds=st.floats(0.1, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for lease in self.table.expire(self.now):
            assert self.leases.pop(lease.id).until <= self.now

    @rule(key=KEYS, size=SIZES, hold=st.floats(0.0, 30.0))
    def publish_begins(self, key: str, size: int, hold: float) -> None:
        present = self.store.find(key)
        if present is not None and present.state != "expected":
            return
        try:
            made = self.store.begin(entry(key, size, self.now + hold), self.now)
        except TransferError:
            return
        self.filling[key] = made
        self.contents[made.offset] = key

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def publish_ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.filling)))
        self.store.commit(self.filling[key], self.now)
        self.ready[key] = self.filling.pop(key)

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def publish_is_given_up(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.filling)))
        self.store.remove(self.filling.pop(key))

    @rule(key=KEYS)
    def expect(self, key: str) -> None:
        self.store.expect(entry(key, 64, self.now + 5))

    @rule()
    def expectations_end(self) -> None:
        for over in self.store.expire(self.now):
            self.store.remove(over)

    @rule(key=KEYS, session=st.integers(1, 3), seconds=st.floats(0.1, 30.0))
    def read(self, key: str, session: int, seconds: float) -> None:
        found = self.store.find(key)
        if found is not None and found.state == "ready":
            lease = self.table.grant(session, found, self.now + seconds)
            self.leases[lease.id] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), session=st.integers(1, 3))
    def release(self, data: st.DataObject, session: int) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        ended = self.table.release(session, lease.id)
        assert (ended is not None) == (session == lease.session)
        if ended is not None:
            del self.leases[lease.id]
            assert self.table.release(session, lease.id) is None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        until = max(lease.until, self.now + 30)
        assert self.table.renew(lease.session, [lease.id], self.now + 30) == [lease.id]
        assert lease.until == until

    @rule(session=st.integers(1, 3))
    def session_ends(self, session: int) -> None:
        self.table.end_session(session)
        self.leases = {i: le for i, le in self.leases.items() if le.session != session}

    @rule(size=SIZES)
    def fetch_begins(self, size: int) -> None:
        try:
            taken = self.store.take_scratch(size, self.now, "h")
        except TransferError:
            return
        self.scratch.append(taken)
        self.contents[taken.offset] = "scratch"

    @precondition(lambda self: self.scratch)
    @rule()
    def fetch_ends(self) -> None:
        self.store.free_scratch(self.scratch.pop())

    @invariant()
    def nothing_overlaps(self) -> None:
        ranges = [(e.offset, e.nbytes) for e in self.live()]
        ranges += [(s.offset, s.nbytes) for s in self.scratch]
        end = used = 0
        for offset, nbytes in sorted(ranges):
            assert offset >= end
            assert offset % ALIGNMENT == 0
            end = offset + nbytes
            used += Allocator.rounded(nbytes)
        assert end <= self.store.capacity
        assert used == self.store.used

    @invariant()
    def what_is_read_was_not_overwritten(self) -> None:
        for lease in self.leases.values():
            target = lease.target
            assert isinstance(target, Entry)
            assert target.state == "ready"
            assert self.contents[target.offset] == target.key

    @invariant()
    def pins_are_the_leases(self) -> None:
        assert len(self.table) == len(self.leases)
        for live in self.live():
            count = sum(lease.target is live for lease in self.leases.values())
            assert live.pins == count

    def live(self) -> list[Entry[str]]:
        self.ready = {k: e for k, e in self.ready.items() if e.state == "ready"}
        return [*self.ready.values(), *self.filling.values()]

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        for session in (1, 2, 3):
            self.table.end_session(session)
        assert len(self.table) == 0
        assert all(live.pins == 0 for live in self.live())


StoreAndLeases.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStoreAndLeases = StoreAndLeases.TestCase
