"""The regions of one process and which transports can read each of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ec_connector.regions import PrivateMemory, Region, SharedMemory, address_of
from ec_connector.transports.base import Transport


class Memory:
    """Allocates memory and registers regions; region 0 is the store's.

    Args:
        transports: filled before the first region is added.
        pinned: lock the pages of what is allocated for CUDA.
    """

    def __init__(self, transports: Mapping[str, Transport], *, pinned: bool = False) -> None:
        self._pinned = pinned
        self.regions: dict[int, Region] = {}
        self._transports = transports
        self._offered: dict[int, tuple[str, ...]] = {}
        self._allocated: list[SharedMemory | PrivateMemory] = []

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed memory that every transport can read from.

        Raises:
            InvalidRequest: it cannot be pinned.
        """
        shared = any(transport.maps_memory for transport in self._transports.values())
        memory = SharedMemory(nbytes) if shared else PrivateMemory(nbytes)
        self._allocated.append(memory)
        if self._pinned:
            from ec_connector.torch_adapter import pin

            pin(address_of(memory.buffer), memory.nbytes)
        return memory.buffer[:nbytes]

    def add(self, name: str, buffer: memoryview) -> Region:
        """Register writable memory, from `allocate` or anybody's."""
        address = address_of(buffer)
        memory, offset = None, 0
        for candidate in self._allocated:
            start = address_of(candidate.buffer)
            inside = start <= address and address + buffer.nbytes <= start + candidate.nbytes
            if inside and isinstance(candidate, SharedMemory):
                memory, offset = candidate, address - start
        region = Region(len(self.regions), name, buffer, address, memory, offset)
        self.regions[region.id] = region
        self._offered[region.id] = tuple(
            name for name, transport in self._transports.items() if transport.add_region(region)
        )
        return region

    def transports_of(self, region: int) -> tuple[str, ...]:
        """Names of the transports that can read the region, best first."""
        return self._offered[region]

    def prefault(self) -> None:
        """Take all pages now, so that no item pays for them."""
        for memory in self._allocated:
            np.frombuffer(memory.buffer, np.uint8)[::4096] |= 0

    def close(self) -> None:
        """Give everything back."""
        self.regions.clear()
        for memory in self._allocated:
            if self._pinned:
                from ec_connector.torch_adapter import unpin

                unpin(address_of(memory.buffer))
            memory.close()
        self._allocated.clear()
