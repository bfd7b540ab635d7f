"""The cache of processed media: what is used last stays, within a budget of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from render.cache import ItemCache, ItemHead


def head(name: str) -> ItemHead:
    return ItemHead(name, None, ())


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = ItemCache(10)
    cache.put("a", head("a"), b"1234")
    cache.put("b", head("b"), b"1234")
    assert cache.body("a") == b"1234"
    cache.put("c", head("c"), b"1234")
    assert cache.body("b") is None
    assert cache.body("a") is not None
    assert cache.used == 8


def test_the_head_outlives_the_body() -> None:
    cache = ItemCache(2)
    cache.put("a", head("a"), b"much too large")
    assert cache.body("a") is None
    assert cache.head("a") == head("a")
    assert cache.used == 0


def test_an_item_is_replaced_not_added() -> None:
    cache = ItemCache(10)
    cache.put("a", head("a"), b"12")
    cache.put("a", head("b"), b"123")
    assert (cache.used, cache.head("a"), cache.body("a")) == (3, head("b"), b"123")


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.binary(max_size=20)), max_size=30),
)
def test_the_budget_holds(capacity: int, puts: list[tuple[str, bytes]]) -> None:
    cache = ItemCache(capacity)
    for key, body in puts:
        cache.put(key, head(key), body)
        assert cache.used <= capacity
        held = [cache.body(name) for name in "abcdef"]
        assert cache.used == sum(len(body) for body in held if body is not None)
