"""Starts `triptych` commands in processes forked from one that has imported what they need.

A worker spends some seconds of CPU time on imports; a benchmark that starts dozens of them on two
cores would measure that. `python -m benchmarks.nursery` reads a JSON line per process from its
standard input (arguments of the command line, a file for its output, variables), forks, and
answers with the process's id. The children are processes like any other: sessions of their own,
which nothing but the imports ties to the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

MODULES = ("deploy.cli", "deploy.standalone", "workers.server", "render.server", "transformers")


class Birth(msgspec.Struct, frozen=True):
    """A process to be started."""

    arguments: list[str]
    output: str
    environment: dict[str, str]


class Forked:
    """The part of `subprocess.Popen` that is needed, for a process that is nobody's child here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return None if self._process is not None and self._process.is_running() else 0

    def send_signal(self, number: int) -> None:
        """To it, if it runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process is not None:
                self._process.send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; its status is not known.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        try:
            if self._process is not None:
                self._process.wait(timeout)
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
        return 0


class Nursery:
    """A running nursery; use as a context manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.terminate()
        self._popen.wait(10)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()

    def start(
        self, arguments: Sequence[str], output: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Start `triptych ARGUMENTS`.

        Raises:
            RuntimeError: the nursery has died.
        """
        pipes = self._popen.stdin, self._popen.stdout
        if pipes[0] is None or pipes[1] is None:
            raise RuntimeError("the nursery has no pipes")
        output.touch()
        birth = Birth(list(arguments), str(output), dict(environment))
        pipes[0].write(msgspec.json.encode(birth) + b"\n")
        pipes[0].flush()
        said = pipes[1].readline()
        if not said:
            raise RuntimeError("the nursery has died")
        return Forked(int(said))


def _run(birth: Birth) -> None:
    """In the child: become the command."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(birth.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(birth.environment)
    sys.argv = ["triptych", *birth.arguments]
    from deploy import cli

    cli.main()


def main() -> Any:
    """Until standard input ends."""
    for module in MODULES:
        __import__(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while line := sys.stdin.buffer.readline():
        birth = msgspec.json.decode(line, type=Birth)
        pid = os.fork()
        if pid == 0:
            return _run(birth)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    sys.exit(main())
