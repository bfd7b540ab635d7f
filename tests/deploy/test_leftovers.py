"""Processes of an instance are found by their marker, and ended when they outlive it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy import leftovers

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


def child(marker: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env=os.environ | marker
    )


def test_marked_processes_are_found_and_others_are_not(
    children: list[subprocess.Popen[bytes]],
) -> None:
    ours, other = leftovers.new_marker(), leftovers.new_marker()
    children += [child(ours), child(other)]
    assert [p.pid for p in leftovers.marked(ours[leftovers.MARKER])] == [children[0].pid]


def test_those_that_stay_are_killed(children: list[subprocess.Popen[bytes]]) -> None:
    marker = leftovers.new_marker()
    children.append(child(marker))
    (killed,) = leftovers.end(marker[leftovers.MARKER], 0.0)
    assert WAITS in killed
    children[0].wait(10)  # the status may be lost: whoever killed it has waited for it too
    assert leftovers.marked(marker[leftovers.MARKER]) == []


def test_nothing_left_is_nothing_to_wait_for() -> None:
    assert leftovers.end("nobody", 60.0) == []
