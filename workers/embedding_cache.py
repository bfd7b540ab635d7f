"""Embeddings that this worker has seen lately, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict

import torch

ItemKey = tuple[str, str]
"""(cache salt, mm_hash)."""


class EmbeddingCache:
    """[rows, embedding_width] tensors by key, at most `capacity` bytes of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._rows: OrderedDict[ItemKey, torch.Tensor] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes held."""
        return self._used

    def get(self, key: ItemKey) -> torch.Tensor | None:
        """The rows, or None."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def put(self, key: ItemKey, rows: torch.Tensor) -> None:
        """Keep the rows; those larger than the cache are not kept."""
        if rows.nbytes > self._capacity:
            return
        old = self._rows.pop(key, None)
        self._used += rows.nbytes - (old.nbytes if old is not None else 0)
        self._rows[key] = rows
        while self._used > self._capacity:
            _, evicted = self._rows.popitem(last=False)
            self._used -= evicted.nbytes
