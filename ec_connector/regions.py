"""Memory that items live in: allocated so that other processes on this host can map it.

Memory is a sealed memfd: it cannot shrink, so a reader never gets SIGBUS, and nobody but its
owner can map it writable. It has no name in any file system; the kernel frees it with the last
process that maps it, however that process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

_F_SEAL_FUTURE_WRITE = 0x10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE


class SharedMemory:
    """Zeroed, page-aligned memory of this process that peers can be given to map.

    Args:
        nbytes: size; pages are taken when first written.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("triptych-ec", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.nbytes)
            self._map = mmap.mmap(self.fd, self.nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(self.fd)
            raise
        self.buffer = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back; tensors over it keep the mapping until they are gone."""
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.buffer.release()
            self._map.close()


class PrivateMemory:
    """Zeroed, page-aligned memory of this process alone, of huge pages where the system has them.

    Copying in the kernel is up to four times as fast as with small pages.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.buffer = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back; tensors over it keep the mapping until they are gone."""
        with contextlib.suppress(BufferError):
            self.buffer.release()
            self._map.close()


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Writable memory that items may be read from and received into.

    Attributes:
        id: 0 is the store's.
        name: for logs.
        buffer: all of it, as bytes.
        address: of its first byte in this process.
        memory: what it is part of, where that can be mapped by others.
        memory_offset: where in `memory` it begins.
    """

    id: int
    name: str
    buffer: memoryview
    address: int
    memory: SharedMemory | None = None
    memory_offset: int = 0

    def views(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes of (offset, nbytes) spans, neighbours joined."""
        return [self.buffer[offset : offset + nbytes] for offset, nbytes in joined(spans)]


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in the same order with neighbouring spans made one."""
    result: list[tuple[int, int]] = []
    for offset, nbytes in spans:
        if result and sum(result[-1]) == offset:
            result[-1] = (result[-1][0], result[-1][1] + nbytes)
        else:
            result.append((offset, nbytes))
    return result


def address_of(buffer: memoryview) -> int:
    """The address of a writable buffer's first byte."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
