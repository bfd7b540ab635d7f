"""The two servers under comparison, each a process with its log."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

START_S = 300.0
"""The reference imports torch and compiles nothing, but a busy machine takes its time."""
_STOP_S = 20.0
_POLL_S = 0.2
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class StartFailed(Exception):
    """A server ended, or did not answer in time; the message has the end of its log."""


@dataclass
class Server:
    """One server's process; use as a context manager.

    Attributes:
        name: for messages and the log's file.
        command: what to run.
        url: where it will answer.
        log: its output.
    """

    name: str
    command: Sequence[str]
    url: str
    log: Path
    variables: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.variables},
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def pid(self) -> int:
        """Of the process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Until it answers.

        Raises:
            StartFailed: it does not.
        """
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise StartFailed(f"{self.name} ended:\n{self.tail()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(_POLL_S)
        raise StartFailed(f"{self.name} did not answer within {START_S:.0f} s:\n{self.tail()}")

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def reference(
    command: Path, model: Path, max_model_len: int, options: Sequence[str], log: Path
) -> Server:
    """The render server of vLLM."""
    port = free_port()
    full = [
        str(command), "launch", "render", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(max_model_len), "--disable-uvicorn-access-log", *options,
    ]  # fmt: skip
    return Server("vllm launch render", full, f"http://127.0.0.1:{port}", log, _QUIET)


def ours(model: Path, max_model_len: int, config: dict[str, Any], log: Path) -> Server:
    """`triptych render`; `config` has what no option sets."""
    port = free_port()
    file = log.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config))
    full = [
        sys.executable, "-m", "deploy.cli", "render", str(model), "--port", str(port),
        "--grpc-port", "0", "--max-model-len", str(max_model_len), "--config", str(file),
        "--log-level", "WARNING",
    ]  # fmt: skip
    return Server("triptych render", full, f"http://127.0.0.1:{port}", log)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
