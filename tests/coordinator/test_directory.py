"""What the directory says of embeddings."""

from __future__ import annotations

from coordinator.directory import Directory, ItemKey
from protocol.rpc import HeldItem, Holdings
from protocol.transfer import EcItem

KEY = ItemKey("c", "", "a")
ITEM = EcItem("a", "h")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_descriptor_is_given_out_for_half_its_lease() -> None:
    clock = Clock()
    directory = Directory(clock=clock)
    directory.put(KEY, "e1", ITEM, None, 30.0)
    clock.now = 14.9
    held = directory.fresh(KEY)
    assert held is not None
    assert held.item is ITEM
    clock.now = 15.0
    assert directory.fresh(KEY) is None
    assert directory.holder(KEY) == "e1"


def test_salts_and_cohorts_are_kept_apart() -> None:
    directory = Directory()
    directory.put(KEY, "e1", ITEM, None, 30.0)
    assert directory.fresh(ItemKey("c", "salt", "a")) is None
    assert directory.fresh(ItemKey("other", "", "a")) is None


def test_it_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    directory = Directory(capacity=2)
    keys = [ItemKey("c", "", str(i)) for i in range(3)]
    for key in keys[:2]:
        directory.put(key, "e1", ITEM, None, 30.0)
    assert directory.fresh(keys[0]) is not None
    directory.put(keys[2], "e1", ITEM, None, 30.0)
    assert len(directory) == 2
    assert directory.fresh(keys[1]) is None
    assert directory.fresh(keys[0]) is not None


def test_only_the_entry_of_the_holder_at_fault_is_forgotten() -> None:
    directory = Directory()
    directory.put(KEY, "e2", ITEM, None, 30.0)
    directory.forget(KEY, "e1")
    assert directory.holder(KEY) == "e2"
    directory.forget(KEY, "e2")
    assert directory.holder(KEY) is None


def test_a_holder_takes_its_entries_along() -> None:
    directory = Directory()
    other = ItemKey("c", "", "b")
    directory.put(KEY, "e1", ITEM, None, 30.0)
    directory.put(other, "e2", ITEM, None, 30.0)
    directory.forget_holder("e1")
    assert directory.holder(KEY) is None
    assert directory.holder(other) == "e2"


def notice(held: str = "", evicted: str = "", *, whole: bool = False) -> Holdings:
    """Items are named by single letters."""
    return Holdings([HeldItem(c) for c in held], [HeldItem(c) for c in evicted], whole)


def key(mm_hash: str) -> ItemKey:
    return ItemKey("c", "", mm_hash)


def test_notices_tell_who_holds_what_and_nothing_that_can_be_given_out() -> None:
    directory = Directory()
    directory.hear("c", "one", notice("ab", whole=True))
    directory.hear("c", "two", notice("d"))
    assert [directory.holder(key(c)) for c in "abd"] == ["one", "one", "two"]
    assert directory.fresh(key("a")) is None
    directory.hear("c", "one", notice("e", evicted="a"))
    assert [directory.holder(key(c)) for c in "abe"] == [None, "one", "one"]


def test_an_eviction_elsewhere_leaves_the_entry_of_another_holder() -> None:
    directory = Directory()
    directory.hear("c", "one", notice("a"))
    directory.hear("c", "two", notice(evicted="a"))
    assert directory.holder(key("a")) == "one"


def test_a_whole_notice_replaces_what_was_known_of_a_replica_alone() -> None:
    """As after its stream broke: notices may have been lost meanwhile."""
    directory = Directory()
    directory.hear("c", "one", notice("abd"))
    directory.hear("c", "two", notice("e"))
    directory.hear("c", "one", notice("b", whole=True))
    assert [directory.holder(key(c)) for c in "abde"] == [None, "one", None, "two"]


def test_a_notice_does_not_take_a_descriptor_away() -> None:
    directory = Directory()
    item = EcItem("a", "h")
    directory.put(key("a"), "one", item, None, 30.0)
    directory.hear("c", "two", notice("a"))
    held = directory.fresh(key("a"))
    assert held is not None
    assert held.item == item


def test_notices_do_not_make_it_grow_beyond_its_bound() -> None:
    directory = Directory(capacity=3)
    directory.hear("c", "one", notice("abdefgh", whole=True))
    assert len(directory) == 3
    assert directory.holder(key("h")) == "one"
