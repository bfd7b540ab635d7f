"""Memory and CPU of real processes."""

from __future__ import annotations

import os

import psutil

from benchmarks.usage import MemoryPeaks, cpu_seconds, pss_bytes


def test_this_process_has_memory_and_has_used_time() -> None:
    assert pss_bytes(os.getpid()) > 2**20
    assert cpu_seconds([psutil.Process()]) > 0


def test_a_process_that_is_gone_counts_as_nothing() -> None:
    assert pss_bytes(2**22 + 1) == 0


def test_peaks_are_at_least_what_is_there() -> None:
    with MemoryPeaks({"me": [psutil.Process()]}, period_s=0.01) as memory:
        pass
    assert memory.peaks["me"] > 2**20
