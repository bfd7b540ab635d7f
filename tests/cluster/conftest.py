"""Processes that live for the session, and their output where a test fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import fleet as fleets
from tests.cluster.fleet import Fleet
from tests.cluster.processes import ServerProcess

_SHOWN = 6000
"""Characters of each process's output that are shown."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One process of every role, two of encode, and a coordinator per topology."""
    started = fleets.start(tmp_path_factory.mktemp("fleet"))
    yield started
    started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the processes wrote to the report of a test that failed."""
    report = yield
    if report.failed:
        for process in _processes(item):
            tail = process.output()[-_SHOWN:]
            state = "running" if process.running else "ended"
            report.sections.append((f"output of {process.name} ({state})", tail))
    return report


def _processes(item: pytest.Item) -> list[ServerProcess]:
    fixtures = getattr(item, "funcargs", {})
    found = [value for value in fixtures.values() if isinstance(value, ServerProcess)]
    running = fixtures.get("fleet")
    return found + (running.processes.all if isinstance(running, Fleet) else [])
