"""`triptych serve` as a user sees it: one start, real processes, one end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deploy import demo_request
from deploy.ports import free_ports, require_free

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_LAUNCH_OF_TRIPTYCH"
START_S = 400.0
"""Longest start when every other test runs at the same time."""

STOP_S = 90.0


@dataclass(frozen=True)
class Launched:
    """A running `triptych serve`."""

    process: subprocess.Popen[bytes]
    port: int
    out: Path
    err: Path
    temporary: Path
    mark: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[psutil.Process]:
        """Everything that it started and that still runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
        return found


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "deploy.cli", "serve", *arguments]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    directory = tmp_path_factory.mktemp("launch")
    temporary = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    (port,) = free_ports(1)
    mark = uuid.uuid4().hex
    out, err = directory / "out", directory / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command("--port", str(port)),
            cwd=ROOT,
            env=os.environ | {MARK: mark, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    launch = Launched(process, port, out, err, temporary, mark)
    try:
        deadline = time.monotonic() + START_S
        while "Ctrl-C stops it." not in out.read_text():
            assert process.poll() is None, err.read_text()
            assert time.monotonic() < deadline, err.read_text()
            time.sleep(0.2)
        yield launch
    finally:
        for left in launch.processes():
            with contextlib.suppress(psutil.Error):
                left.kill()
        process.wait(10)
        shutil.rmtree(temporary, ignore_errors=True)


def pasted(launched: Launched) -> dict[str, Any]:
    """The answer to the line that was printed, run by a shell as it stands."""
    line = next(line for line in launched.out.read_text().splitlines() if line.startswith("curl "))
    assert shutil.which("curl"), "the printed line needs curl"
    answer = subprocess.run(
        ["bash", "-c", line.replace("curl ", "curl -sS --noproxy '*' ", 1)],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return dict(json.loads(answer.stdout))


def test_it_prints_the_url_and_the_map_and_each_stage_as_it_comes_up(launched: Launched) -> None:
    out, err = launched.out.read_text(), launched.err.read_text()
    assert f"triptych-demo is ready at {launched.url}" in out
    for stage, count in (("render", 1), ("encode", 2), ("prefill", 1), ("decode", 1)):
        assert f"{stage:<15}{count:>4} x CPU" in err
        assert f"{stage}, {count} running" in err
    assert "Traceback" not in out + err


def test_the_line_works_as_pasted(launched: Launched) -> None:
    answer = pasted(launched)
    assert answer["choices"][0]["message"]["content"] == demo_request.CAPTION


def test_it_streams(launched: Launched) -> None:
    body = demo_request.body("triptych-demo") | {"stream": True}
    with httpx.stream(
        "POST", f"{launched.url}/v1/chat/completions", json=body, timeout=120
    ) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "data: [DONE]"
    assert len(events) > 3


def test_it_is_healthy_and_names_its_model(launched: Launched) -> None:
    assert httpx.get(f"{launched.url}/health", timeout=30).status_code == 200
    models = httpx.get(f"{launched.url}/v1/models", timeout=30).json()
    assert [model["id"] for model in models["data"]] == ["triptych-demo"]


def test_scale_out_endpoints_are_off(launched: Launched) -> None:
    answer = httpx.post(f"{launched.url}/inference/v1/generate", json={}, timeout=30)
    assert answer.status_code == 403
    assert "--enable-scale-out" in answer.json()["error"]["message"]


def test_a_second_one_on_the_port_says_who_has_it(launched: Launched) -> None:
    second = subprocess.run(
        command("--port", str(launched.port)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert line.startswith(f"triptych: port {launched.port} is taken by pid ")


def test_a_killed_replica_comes_back(launched: Launched) -> None:
    victim = next(
        process
        for process in launched.processes()
        if "ServeReplica:triptych-stages:decode" in " ".join(process.cmdline())
    )
    victim.kill()
    assert pasted(launched)["choices"][0]["message"]["content"] == demo_request.CAPTION


def test_ctrl_c_leaves_nothing_behind(launched: Launched) -> None:
    os.killpg(launched.process.pid, signal.SIGINT)
    assert launched.process.wait(STOP_S) == 0
    assert launched.err.read_text().rstrip().endswith("stopped")
    psutil.wait_procs(launched.processes(), 20)  # Ray's agents notice that their raylet is gone
    assert not [" ".join(process.cmdline()) for process in launched.processes()]
    require_free("127.0.0.1", launched.port)
    assert not list(launched.temporary.glob("triptych-*"))
