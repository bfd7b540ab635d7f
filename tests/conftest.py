"""What every test gets: a clean environment, and a check that nothing was left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

_SESSION_VARIABLE = "TEST_SESSION_OF_TRIPTYCH"
_SHM = Path("/dev/shm")
_OURS = ("triptych", "psm_", "ucx_shm")
"""Prefixes of our shared memory, of `multiprocessing.shared_memory` and of UCX."""

_CLUSTER_TESTS = "tests/cluster/"

_ISOLATED = "TEST_IS_ALONE_IN_ITS_PROCESS"
_ISOLATED_S = 200

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


@pytest.fixture(autouse=True)
def _no_ucx_here() -> Iterator[None]:
    """Tests that do not say so keep the process free of UCX: see `pytest_pyfunc_call`."""
    yield
    assert "ucxx" not in sys.modules or _ISOLATED in os.environ, "mark it: pytest.mark.ucx"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that opens UCX has a process of its own.

    With the UCX that NIXL brings in the same process, one of the two aborts now and then when a
    peer dies.
    """
    if _ISOLATED in os.environ or not pyfuncitem.get_closest_marker("ucx"):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options = ["-m", "slow or not slow", f"--timeout={_ISOLATED_S - 20}"]
    done = subprocess.run(
        [*command, *options, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _ISOLATED: "1"},
        capture_output=True,
        text=True,
        timeout=_ISOLATED_S,
        check=False,
    )
    if done.returncode or "1 passed" not in done.stdout:  # one that skips itself has not passed
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return True


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Tests of a file run in one process; those of the cluster too, for they share a fleet."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _CLUSTER_TESTS if file.startswith(_CLUSTER_TESTS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """What `-n 2` distributes by."""
    return ByFile(config, log)


class LeftBehind:
    """Fails the whole run when a process or a shared memory segment outlives it."""

    def __init__(self) -> None:
        self._session = uuid.uuid4().hex
        self._found: list[str] = []
        os.environ[_SESSION_VARIABLE] = self._session
        self._before = _segments()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look; what was told to end may still be ending."""
        deadline = time.monotonic() + 30
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._found = found
        if found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is left."""
        if self._found:
            terminalreporter.section("LEFT BEHIND", red=True)
            for line in self._found:
                terminalreporter.line(f"ERROR left behind: {line}")

    def _look(self) -> list[str]:
        processes = [f"{p.pid}: {' '.join(_command(p))}" for p in _processes(self._session)]
        return processes + sorted(_segments() - self._before)


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that all others are started by looks for what is left."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LeftBehind())


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
