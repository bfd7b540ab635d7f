"""Who gets the next call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coordinator.routing.consistent_hash import BoundedConsistentHash
from coordinator.routing.least_loaded import LeastLoaded


@dataclass
class Replica:
    id: str
    load: float = 0


def replicas(count: int) -> list[Replica]:
    return [Replica(f"r{i}") for i in range(count)]


def test_the_least_loaded_gets_it_and_ties_are_spread() -> None:
    policy = LeastLoaded()
    some = [Replica("a", 2), Replica("b", 1), Replica("c", 1)]
    assert {policy.pick(some, None).id for _ in range(50)} == {"b", "c"}


def test_a_key_keeps_its_home() -> None:
    policy = BoundedConsistentHash(1.25)
    some = replicas(4)
    homes = {key: policy.pick(some, key).id for key in map(str, range(100))}
    assert homes == {key: policy.pick(some[::-1], key).id for key in homes}
    assert len(set(homes.values())) == 4


def test_a_leaving_replica_moves_only_its_own_keys() -> None:
    policy = BoundedConsistentHash(1.25)
    some = replicas(4)
    homes = {key: policy.pick(some, key).id for key in map(str, range(200))}
    rest = [r for r in some if r.id != "r0"]
    moved = {key for key in homes if policy.pick(rest, key).id != homes[key]}
    assert moved == {key for key, home in homes.items() if home == "r0"}


def test_without_a_key_it_is_the_least_loaded() -> None:
    some = [Replica("a", 5), Replica("b", 0)]
    assert BoundedConsistentHash(1.25).pick(some, None).id == "b"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(2, 6))
def test_no_replica_gets_more_than_its_share_however_popular_a_key_is(
    keys: list[int], count: int
) -> None:
    policy = BoundedConsistentHash(1.25)
    some = replicas(count)
    for key in keys:
        policy.pick(some, str(key)).load += 1
    assert max(r.load for r in some) <= 1.25 * len(keys) / count + 1
    assert Counter(r.id for r in some if r.load).total() >= 1
