"""Ranges out of one region: aligned, first fit, neighbours joined when freed. Pure."""

from __future__ import annotations

import bisect

ALIGNMENT = 4096
"""Bytes. A page, because the kernel copies what is aligned alike up to twice as fast."""


class Allocator:
    """Hands out disjoint ranges of `[0, capacity)`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, capacity)]  # (offset, size), sorted

    @staticmethod
    def rounded(nbytes: int) -> int:
        """Bytes that an allocation of `nbytes` takes."""
        return -(-nbytes // ALIGNMENT) * ALIGNMENT

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a free range of at least `nbytes`, or None where there is none."""
        size = self.rounded(nbytes)
        for index, (offset, free) in enumerate(self._free):
            if free >= size:
                if free == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, free - size)
                self.used += size
                return offset
        return None

    def free(self, offset: int, nbytes: int) -> None:
        """Give back what `allocate(nbytes)` returned."""
        size = self.rounded(nbytes)
        self.used -= size
        index = bisect.bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            offset = self._free[index - 1][0]
            size += self._free.pop(index - 1)[1]
            index -= 1
        self._free.insert(index, (offset, size))
