"""Embeddings that were seen lately."""

from __future__ import annotations

import torch

from workers.embedding_cache import EmbeddingCache


def rows(count: int) -> torch.Tensor:
    return torch.zeros(count, 1)  # 4 bytes a row


def test_the_least_recently_used_go_first() -> None:
    cache = EmbeddingCache(12)
    for name in "abc":
        cache.put(("", name), rows(1))
    assert cache.get(("", "a")) is not None
    cache.put(("", "d"), rows(1))
    assert cache.get(("", "b")) is None
    assert cache.get(("", "a")) is not None
    assert cache.used == 12


def test_the_same_item_under_another_salt_is_another() -> None:
    cache = EmbeddingCache(100)
    cache.put(("s", "a"), rows(1))
    assert cache.get(("", "a")) is None


def test_what_is_replaced_is_not_counted_twice() -> None:
    cache = EmbeddingCache(100)
    cache.put(("", "a"), rows(5))
    cache.put(("", "a"), rows(2))
    assert cache.used == 8


def test_what_does_not_fit_is_not_kept() -> None:
    cache = EmbeddingCache(7)
    cache.put(("", "a"), rows(2))
    assert cache.get(("", "a")) is None
    assert cache.used == 0
