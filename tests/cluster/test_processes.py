"""The processes themselves: what they load, how they start and how they end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.processes import NotStarted, Processes


def loaded(pid: int) -> set[str]:
    """Files that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}


@pytest.mark.parametrize("library", ["torch", "transformers", "torchvision", "ray"])
def test_a_running_coordinator_has_not_loaded(fleet: Fleet, library: str) -> None:
    """A front door stays small: no torch and no transformers, also after requests."""
    for door in fleet.coordinators.values():
        found = [path for path in loaded(door.pid) if f"/site-packages/{library}/" in path]
        assert not found, found


def test_what_a_coordinator_imports_is_light() -> None:
    """Pure Python leaves no mapping: a fresh interpreter imports what the command imports."""
    program = (
        "import sys\n"
        "import coordinator.server, coordinator.membership.static, render.derender\n"
        "print([m for m in ('torch', 'transformers', 'ray') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken, Processes(tmp_path) as processes:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = processes.start(
            "coordinator", ["coordinator", "demo", "--port", port, "--replicas", "127.0.0.1:1"], {}
        )
        with pytest.raises(NotStarted):
            process.ready(time.monotonic() + 60)
        assert process.wait(10) == 1
        lines = process.output().strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"triptych: port {port} is taken")


def test_a_coordinator_without_replicas_is_live_but_not_healthy(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        door = processes.coordinator(
            ["127.0.0.1:1"], api_keys=["key-1"], cluster_token="token-1", request_timeout_s=2.0
        )
        door.ready(time.monotonic() + 60, healthy=False)
        with httpx.Client(base_url=door.http, timeout=10) as client:
            assert client.get("/live").status_code == 200
            health = client.get("/health")
            assert health.status_code == 503
            assert "render" in health.json()["missing"]
            assert client.get("/v1/models").status_code == 401
            assert client.get("/nothing").status_code == 401
            key = {"Authorization": "Bearer key-1"}
            assert client.get("/nothing", headers=key).status_code == 404
            for path in ("/inference/v1/generate", "/v1/chat/completions/render"):
                closed = client.post(path, headers=key, content=b"anything")
                assert closed.status_code == 403
                assert "--enable-scale-out" in closed.json()["error"]["message"]
                assert client.get(path, headers=key).status_code == 405
            body = {"messages": [{"role": "user", "content": "secret words"}]}
            refused = client.post("/v1/chat/completions", headers=key, json=body)
            assert refused.status_code in (503, 504)
            assert refused.json()["error"]["retryable"] is True
        door.terminate()
        assert door.wait(15) == 0
        for secret in ("key-1", "token-1", "secret words"):
            assert secret not in door.output()
