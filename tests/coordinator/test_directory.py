"""What the directory says of embeddings."""

from __future__ import annotations

from coordinator.directory import Directory, ItemKey
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
