"""A safetensors file in shared memory, written by one process and loaded by the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="triptych-bench-") as folder:
        for size in {size for size, _ in settings.cases}:
            tensor = np.full(size, BYTE, np.uint8)
            save_file({"ec_cache": tensor}, Path(folder) / f"{size}.safetensors")
        listening(folder)
        until_told()


def measure(settings: Settings) -> list[list[float]]:
    folder = Path(settings.address)
    threads = ThreadPoolExecutor(settings.most)

    def fetch(size: int) -> None:
        tensor = load_file(folder / f"{size}.safetensors")["ec_cache"]
        assert tensor[-1] == BYTE

    def move(size: int, many: int) -> None:
        if many == 1:
            fetch(size)
        else:
            list(threads.map(fetch, [size] * many))

    return [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]


if __name__ == "__main__":
    run(serve, measure)
