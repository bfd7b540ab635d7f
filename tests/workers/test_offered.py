"""Offers by request id: freed for callers that never learnt the key."""

from __future__ import annotations

from typing import Any

from protocol.transfer import EcItem, KvHandoff, kv_params
from workers.offered import OfferedBlocks


def params(key: str) -> dict[str, Any]:
    return kv_params(KvHandoff(EcItem("kv", "127.0.0.1", key=key), 5, 16, (1,)))


def offered(offers: OfferedBlocks, request_id: str | None, key: str) -> list[str]:
    """A prefill that runs to its end."""
    with offers.running(request_id) as call:
        return offers.add(request_id, params(key), call)


def test_an_offer_is_found_by_its_request_once() -> None:
    offers = OfferedBlocks()
    assert offered(offers, "r1", "k1") == []
    assert offers.take(["r0", "r1"]) == ["k1"]
    assert offers.take(["r1"]) == []


def test_the_oldest_is_forgotten_first() -> None:
    offers = OfferedBlocks(capacity=2)
    for number in range(3):
        offered(offers, f"r{number}", f"k{number}")
    assert len(offers) == 2
    assert offers.take(["r0", "r1", "r2"]) == ["k1", "k2"]


def test_a_caller_that_left_before_the_offer_frees_it() -> None:
    """Its release overtook the end of the prefill."""
    offers = OfferedBlocks()
    with offers.running("r1") as call:
        assert offers.take(["r1"]) == []
        assert offers.add("r1", params("k1"), call) == ["k1"]
    assert len(offers) == 0


def test_a_later_try_of_the_same_request_is_wanted() -> None:
    offers = OfferedBlocks()
    with offers.running("r1") as left:
        offers.take(["r1"])
        with offers.running("r1") as again:
            assert offers.add("r1", params("k2"), again) == []
        assert offers.add("r1", params("k1"), left) == ["k1"]
    assert offers.take(["r1"]) == ["k2"]


def test_requests_without_an_id_or_an_offer_are_not_kept() -> None:
    offers = OfferedBlocks()
    assert offered(offers, None, "k1") == []
    with offers.running("r1") as call:
        assert offers.add("r1", None, call) == []
    assert len(offers) == 0
