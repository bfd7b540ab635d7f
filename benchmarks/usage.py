"""CPU time and memory of processes, from the kernel's accounts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


def cpu_seconds(family: Sequence[psutil.Process]) -> float:
    """User and system time of processes so far; those that ended count as nothing."""
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def pss_bytes(pid: int) -> int:
    """Proportional set size: private memory, and shared memory divided by who shares it."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryPeaks:
    """Samples the memory of named process families in a thread; use as a context manager.

    Args:
        families: name -> a process and its children.
        period_s: between samples.

    Attributes:
        peaks: name -> largest sum of PSS over the family, in bytes.
    """

    def __init__(
        self, families: Mapping[str, Sequence[psutil.Process]], period_s: float = 0.5
    ) -> None:
        self._families = families
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self.peaks: dict[str, int] = dict.fromkeys(families, 0)

    def __enter__(self) -> MemoryPeaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            for name, family in self._families.items():
                now = sum(pss_bytes(process.pid) for process in family)
                self.peaks[name] = max(self.peaks[name], now)
            if self._ended.wait(self._period_s):
                return
