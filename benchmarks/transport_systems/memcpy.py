"""Copying inside one process: what memory allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    listening(None)
    until_told()


def measure(settings: Settings) -> list[list[float]]:
    source = np.full(settings.span, BYTE, np.uint8)
    target = np.zeros(settings.span, np.uint8)
    return [
        rounds(settings, lambda n=size * many: np.copyto(target[:n], source[:n]))
        for size, many in settings.cases
    ]


if __name__ == "__main__":
    run(serve, measure)
