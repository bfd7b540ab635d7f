"""Keys by request id: freed for callers that never learnt them."""

from __future__ import annotations

from ec_connector.owners import KeyOwners


def ended(owners: KeyOwners, request_id: str | None, *keys: str) -> list[str]:
    """A call that runs to its end."""
    with owners.running(request_id) as call:
        return owners.add(request_id, keys, call)


def test_keys_are_found_by_their_request_once() -> None:
    owners = KeyOwners()
    assert ended(owners, "r1", "k1", "k2") == []
    assert owners.take(["r0", "r1"]) == ["k1", "k2"]
    assert owners.take(["r1"]) == []


def test_a_second_call_of_a_request_adds_to_the_first() -> None:
    owners = KeyOwners()
    ended(owners, "r1", "k1")
    ended(owners, "r1", "k1", "k2")
    assert owners.take(["r1"]) == ["k1", "k1", "k2"]


def test_the_oldest_is_forgotten_first() -> None:
    owners = KeyOwners(capacity=2)
    for number in range(3):
        ended(owners, f"r{number}", f"k{number}")
    assert len(owners) == 2
    assert owners.take(["r0", "r1", "r2"]) == ["k1", "k2"]


def test_a_caller_that_left_before_the_end_frees_the_keys() -> None:
    """Its release overtook the end of the call."""
    owners = KeyOwners()
    with owners.running("r1") as call:
        assert owners.take(["r1"]) == []
        assert owners.add("r1", ["k1"], call) == ["k1"]
    assert len(owners) == 0


def test_a_later_try_of_the_same_request_is_wanted() -> None:
    owners = KeyOwners()
    with owners.running("r1") as left:
        owners.take(["r1"])
        with owners.running("r1") as again:
            assert owners.add("r1", ["k2"], again) == []
        assert owners.add("r1", ["k1"], left) == ["k1"]
    assert owners.take(["r1"]) == ["k2"]


def test_calls_without_an_id_or_keys_are_not_kept() -> None:
    owners = KeyOwners()
    assert ended(owners, None, "k1") == []
    assert ended(owners, "r1") == []
    assert len(owners) == 0
