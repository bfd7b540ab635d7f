"""Mooncake's TransferEngine over TCP, in an environment of its own (`mooncake_environment`).

Imports nothing of ours but `base`.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def _engine() -> Any:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("the transfer engine does not start")
    return engine


def _memory(nbytes: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, nbytes)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    engine = _engine()
    source, address = _memory(settings.largest)
    source[:] = bytes([BYTE]) * settings.largest
    engine.register_memory(address, settings.largest)
    listening([f"127.0.0.1:{engine.get_rpc_port()}", address])
    until_told()


def measure(settings: Settings) -> list[list[float]]:
    engine = _engine()
    target, here = _memory(settings.span)
    engine.register_memory(here, settings.span)
    peer, there = settings.address

    def move(size: int, many: int) -> None:
        if many == 1:
            failed = engine.transfer_sync_read(peer, here, there, size)
        else:
            failed = engine.batch_transfer_sync_read(
                peer, [here + i * size for i in range(many)], [there] * many, [size] * many
            )
        if failed:
            raise RuntimeError("a read failed")

    results = [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]
    if target[0] != BYTE:
        raise RuntimeError("wrong bytes")
    return results


if __name__ == "__main__":
    run(serve, measure)
