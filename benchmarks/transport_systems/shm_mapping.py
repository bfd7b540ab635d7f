"""What `shm` does once per peer and then never again: mapping memory of the peer.

Each round maps sealed memory of the size read-only with the transport's own code, makes a tensor
over it, looks at one byte and unmaps it. A fetch over a mapping that is there is `ours: shm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told
from ec_connector.regions import SharedMemory
from ec_connector.torch_adapter import from_buffer
from ec_connector.transports.shm import map_sealed


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    listening(None)
    until_told()


def measure(settings: Settings) -> list[list[float]]:
    memory = SharedMemory(settings.largest)
    np.frombuffer(memory.buffer, np.uint8)[:] = BYTE

    def fetch(size: int) -> None:
        mapping = map_sealed(memory.fd, memory.nbytes)
        tensor = from_buffer(memoryview(mapping)[:size], (size,), "uint8")
        assert int(tensor[-1]) == BYTE

    def move(size: int, many: int) -> None:
        for _ in range(many):
            fetch(size)

    return [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]


if __name__ == "__main__":
    run(serve, measure)
