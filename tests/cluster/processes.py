"""Starts our servers as real processes through the command line, and ends them.

A server picks its own ports and says where it is in its first line of output; `ready` waits for
that line and then for `/health`. Output goes to a file per process, for the tests to show when
one fails. Nothing here knows pytest, so that the benchmarks start the same processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0
"""Longest start of a process on a busy machine, imports included."""

_READY = re.compile(r"^ready: (?P<what>\w+): (?P<where>.*)$", re.MULTILINE)
_POLL_S = 0.05


class NotStarted(Exception):
    """A process ended, or said nothing, before it was ready; holds the end of its output."""


class Child(Protocol):
    """What is needed of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Spawn: TypeAlias = Callable[[Sequence[str], Path, Mapping[str, str]], Child]
"""Starts `triptych` with arguments, a file for its output, and variables."""


def spawn(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> Child:
    """A child process of this one."""
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class ServerProcess:
    """One `triptych` command as a process.

    Args:
        name: what the log file and messages call it.
        arguments: of the command line, `["worker", "demo", "--role", "encode"]`.
        config: keys of the server's own configuration, given as a YAML file.
        directory: for the log and the configuration.
        threads: torch and OpenMP threads.
        environment: more variables.
        start: makes the process.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        config: Mapping[str, Any],
        directory: Path,
        *,
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
        start: Spawn = spawn,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.grpc = ""
        self.http = ""
        file = directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
        command = [*arguments, "--config", str(file)]
        self._child = start(command, self.log, server_environment(threads, environment or {}))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def ready(self, deadline: float, *, healthy: bool = True) -> None:
        """Wait until it has said where it is, and answers 200 on `/health`.

        Args:
            deadline: on `time.monotonic`.
            healthy: False: its first line is enough.

        Raises:
            NotStarted: with the end of its output.
        """
        while True:
            said = _READY.search(self.output())
            if said is not None:
                break
            self._wait(deadline, "said nothing")
        self._address(said["what"], said["where"])
        if not healthy:
            return
        with httpx.Client(base_url=self.http, timeout=5.0) as client:
            while not _answers(client):
                self._wait(deadline, "is not healthy")

    def output(self) -> str:
        """Everything that it has written."""
        return self.log.read_text("utf-8", "replace")

    def metrics(self) -> dict[str, float]:
        """`/metrics`: sample name with its labels -> value."""
        text = httpx.get(f"{self.http}/metrics", timeout=10.0).raise_for_status().text
        samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def family(self) -> list[psutil.Process]:
        """The process and its children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        return []

    def terminate(self) -> None:
        """Ask it to drain and end; returns at once."""
        if self.running:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, and what it started."""
        end(self.family())
        self.wait(60)

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or None when it still runs after `seconds`."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _address(self, what: str, where: str) -> None:
        if what == "coordinator":
            self.http = where.strip()
            return
        found = re.fullmatch(r"gRPC (\S+), HTTP (\S+)", where.strip())
        if found is None:
            raise NotStarted(f"{self.name} said {where!r}")
        self.grpc = found[1]
        self.http = "" if found[2] == "off" else found[2].rstrip("/")

    def _wait(self, deadline: float, problem: str) -> None:
        if not self.running:
            raise NotStarted(f"{self.name} ended:\n{self.output()[-4000:]}")
        if time.monotonic() > deadline:
            raise NotStarted(f"{self.name} {problem} in time:\n{self.output()[-4000:]}")
        time.sleep(_POLL_S)


class Processes:
    """Servers that are started together, and ended together.

    Use as a context manager. `start` returns at once; `ready` waits for all that are not ready.
    """

    def __init__(self, directory: Path, spawn: Spawn = spawn) -> None:
        self._directory = directory
        self._spawn = spawn
        self._waiting: list[ServerProcess] = []
        self.all: list[ServerProcess] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self.all)

    def render(self, name: str = "render", model: str = "demo", **config: Any) -> ServerProcess:
        """Start a render server; keys are of `RenderConfig`."""
        given = {"processes": 1, **config}
        return self.start(name, ["render", model, "--port", "0", "--grpc-port", "0"], given)

    def worker(
        self, role: str, name: str = "", model: str = "demo", *, threads: int = 1, **config: Any
    ) -> ServerProcess:
        """Start a worker with its scale-out endpoints open; keys are of `WorkerConfig`."""
        given = {"enable_scale_out": True, "threads": threads, **config}
        arguments = ["worker", model, "--role", role, "--port", "0", "--grpc-port", "0"]
        return self.start(name or role, arguments, given, threads=threads)

    def coordinator(
        self, replicas: Sequence[str], name: str = "coordinator", model: str = "demo", **config: Any
    ) -> ServerProcess:
        """Start a coordinator over gRPC addresses; keys are of `CoordinatorConfig`."""
        listed = [part for address in replicas for part in ("--replicas", address)]
        return self.start(name, ["coordinator", model, "--port", "0", *listed], config)

    def start(
        self, name: str, arguments: Sequence[str], config: Mapping[str, Any], *, threads: int = 1
    ) -> ServerProcess:
        """Start any command."""
        process = ServerProcess(
            name, arguments, config, self._directory, threads=threads, start=self._spawn
        )
        self.all.append(process)
        self._waiting.append(process)
        return process

    def ready(self, seconds: float = START_S) -> None:
        """Wait for every process that was started since the last call."""
        deadline = time.monotonic() + seconds
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            process.ready(deadline)

    def stop(self, processes: Sequence[ServerProcess], seconds: float = 30.0) -> None:
        """Ask all to end, and end those that do not within `seconds`."""
        families = [process.family() for process in processes]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + seconds
        for process in processes:
            if process.wait(max(0.1, deadline - time.monotonic())) is None:
                process.kill()
        children = [child for family in families for child in family[1:]]
        _, left = psutil.wait_procs(children, timeout=5)
        end(left)


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill, but leave multiprocessing's resource trackers to clean up after the others."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not any("resource_tracker" in part for part in process.cmdline()):
                process.kill()


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/health").status_code == 200
    return False


def server_environment(threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """Variables of a server: those of this process that say nothing about Triptych, and more."""
    hidden = ("TRIPTYCH_", "VLLM_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(hidden)}
    return {
        **kept,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


@contextlib.contextmanager
def eventually(seconds: float, why: str) -> Iterator[Iterator[None]]:
    """Repeat an observation of other processes until it is left, or fail.

    Use as `for _ in attempts: if seen(): break`.
    """
    deadline = time.monotonic() + seconds

    def attempts() -> Iterator[None]:
        while time.monotonic() < deadline:
            yield
            time.sleep(_POLL_S)
        raise AssertionError(f"not within {seconds} s: {why}")

    yield attempts()
