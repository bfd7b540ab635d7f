"""What every test gets: a clean environment, and a check that nothing was left behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_SESSION_VARIABLE = "TEST_SESSION_OF_TRIPTYCH"
_SHM = Path("/dev/shm")
_OURS = ("triptych", "psm_", "ucx_shm")
"""Prefixes of our shared memory, of `multiprocessing.shared_memory` and of UCX."""

_CLEARED = ("TRIPTYCH_", "VLLM_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests reaches them, nor a proxy."""
    for name in list(os.environ):
        if name.upper().startswith(_CLEARED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail the session when a process or a shared memory segment outlives it."""
    session = uuid.uuid4().hex
    os.environ[_SESSION_VARIABLE] = session
    before = _segments()
    yield
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (_processes(session) or _segments() - before):
        time.sleep(0.1)  # processes that were told to end are still ending
    left = [f"{process.pid}: {' '.join(_command(process))}" for process in _processes(session)]
    assert not left, f"processes left behind: {left}"
    segments = _segments() - before
    assert not segments, f"shared memory left behind: {sorted(segments)}"


def _segments() -> set[str]:
    """Names of shared memory of ours and of the transports' libraries."""
    if not _SHM.is_dir():
        return set()
    return {entry.name for entry in _SHM.iterdir() if entry.name.startswith(_OURS)}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _processes(session: str) -> list[psutil.Process]:
    """Processes started by this session, also those whose parent is gone."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            marked = process.environ().get(_SESSION_VARIABLE) == session
            ended = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        tracker = any("multiprocessing.resource_tracker" in part for part in _command(process))
        if marked and not ended and not tracker:
            found.append(process)
    return found
