"""The render benchmark's pictures and what it makes of measurements."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from benchmarks.render import BARE, INLINE, NEW, OURS, REFERENCE, TEXT, Measured, checks_of
from benchmarks.render_requests import Pictures, about, texts


def pixels(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)))


def test_pictures_differ_by_their_number_alone() -> None:
    pictures = Pictures(200, 300)
    first, again, other = (pixels(pictures.jpeg(number)) for number in (5, 5, 6))
    assert first.shape == (300, 200, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(first[100:], other[100:])


def test_no_two_chats_are_alike() -> None:
    chats = [str(body) for body in (*about(Pictures(160, 120), range(20)), *texts(20))]
    assert len(set(chats)) == 40


def measured(server: str, workload: str, rate: float, cpu_ms: float = 1.0) -> Measured:
    return Measured(
        server=server, workload=workload, requests_per_s=rate, p50_ms=1, p99_ms=1, cpu_ms=cpu_ms,
        bad=0,
    )  # fmt: skip


def test_ratios_are_medians_of_rounds() -> None:
    rounds = [
        measured(server, workload, rate, cpu)
        for workload in (TEXT, *NEW, INLINE, BARE)
        for rates in ((20, 80), (30, 90), (100, 100))
        for server, rate, cpu in ((REFERENCE, rates[0], 44.0), (OURS, rates[1], 2.0))
        if not (workload == BARE and server == REFERENCE)
    ]
    found = {check.figure: check for check in checks_of(rounds, {OURS: 12, REFERENCE: 11})}
    assert [check.value for check in found.values()] == [3, 3, 3, 3, 3, 22, 12 / 11, 0]
    assert [check.kept for check in found.values()] == [
        True, True, True, True, False, True, True, True,
    ]  # fmt: skip
