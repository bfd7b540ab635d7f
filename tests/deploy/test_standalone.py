"""A server as a plain process: says where it is, drains on a signal, ends at the second."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SERVER = """
import asyncio
from deploy import standalone

async def start():
    return "encode: gRPC 127.0.0.1:1, HTTP off"

async def stop(drain_s):
    print("stopping", drain_s, flush=True)
    if drain_s:
        await asyncio.sleep(drain_s)
    print("stopped", drain_s, flush=True)

standalone._run(start, stop, {drain})
"""


def server(drain: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(drain=drain)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready: encode: gRPC 127.0.0.1:1, HTTP off\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains(number: signal.Signals) -> None:
    process = server(0.01)
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == "stopping 0.01\nstopped 0.01\n"
    assert process.returncode == 0


def test_a_second_signal_does_not_wait() -> None:
    process = server(600)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping 600\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "stopping 0.0\nstopped 0.0\n"
    assert process.returncode == 0
