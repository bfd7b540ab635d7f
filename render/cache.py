"""Processed media by content.

What a prompt needs of an item (hash, metadata, tokens) is small and kept long; its tensors are
large and kept within a byte budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from render.families.base import Run

MAX_HEADS = 65_536


class ItemHead(NamedTuple):
    """What a prompt needs of a processed medium.

    Attributes:
        mm_hash: content hash.
        metadata: the encoded metadata item, None where there is none.
        runs: the tokens that its placeholder is replaced by.
    """

    mm_hash: str
    metadata: bytes | None
    runs: tuple[Run, ...]


class ItemCache:
    """Least recently used heads and bodies.

    Args:
        capacity: bytes of bodies.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._heads: OrderedDict[Hashable, ItemHead] = OrderedDict()
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes of bodies."""
        return self._used

    def head(self, key: Hashable) -> ItemHead | None:
        """The head under a key, made the most recent."""
        head = self._heads.get(key)
        if head is not None:
            self._heads.move_to_end(key)
        return head

    def body(self, key: Hashable) -> bytes | None:
        """The encoded item under a key, made the most recent."""
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, key: Hashable, head: ItemHead, body: bytes) -> None:
        """Keep an item, pushing out what was used longest ago."""
        self._heads[key] = head
        self._heads.move_to_end(key)
        if len(self._heads) > MAX_HEADS:
            self._heads.popitem(last=False)
        self._used -= len(self._bodies.pop(key, b""))
        if len(body) > self._capacity:
            return
        self._bodies[key] = body
        self._used += len(body)
        while self._used > self._capacity:
            _, oldest = self._bodies.popitem(last=False)
            self._used -= len(oldest)
