"""The rendered RayService on a Ray of this machine: the head with every group's resources.

Serve gets its configuration as KubeRay gives it: over the dashboard's REST API. Environment,
resources and the Serve config are those of the manifests. Not reproduced: several nodes, the
autoscaler, images and limits.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.helm.local_pods import environment_of, free_ports
from tests.helm.rendering import Manifest, of_kind, serve_config

_MARK = "LOCAL_RAY_OF_TEST"


class LocalRay:
    """Ray while entered, with the applications deployed.

    Args:
        manifests: what the chart rendered in mode ray.
        folder: for logs.
        session: for Ray's own files; its sockets need a short path.
        extra: environment that keeps several Rays on one machine apart.
    """

    def __init__(
        self, manifests: list[Manifest], folder: Path, session: Path, extra: dict[str, str]
    ) -> None:
        self.manifests = manifests
        self._session = session
        (service,) = of_kind(manifests, "RayService").values()
        self._cluster = service["spec"]["rayClusterConfig"]
        self._gcs, self._dashboard, agent_grpc, agent_http, metrics = free_ports(5)
        self._ports = {
            "--port": self._gcs,
            "--dashboard-port": self._dashboard,
            "--dashboard-agent-grpc-port": agent_grpc,
            "--dashboard-agent-listen-port": agent_http,
            "--metrics-export-port": metrics,
        }
        head = self._cluster["headGroupSpec"]["template"]
        fields = {"status.podIP": "127.0.0.1", "metadata.name": "head"}
        self._environment = {
            **environment_of(manifests, head, fields),
            "RAY_AUTH_MODE": "disabled",
            _MARK: str(self._gcs),
            **extra,
        }
        self._log = folder / "ray.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalRay:
        command = [
            str(Path(sys.executable).parent / "ray"), "start", "--head", "--block",
            "--node-ip-address", "127.0.0.1",
            "--include-dashboard", "true", "--dashboard-host", "127.0.0.1",
            "--num-cpus", "2", "--object-store-memory", str(100 * 2**20),
            "--resources", json.dumps(self._resources()),
            "--temp-dir", str(self._session),
        ]  # fmt: skip
        for option, port in self._ports.items():
            command += [option, str(port)]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
                cwd=Path(__file__).resolve().parents[2],
            )  # fmt: skip
        try:
            self._wait(self._dashboard_answers, "the dashboard", 300)
            self._call("PUT", "/api/serve/applications/", serve_config(self.manifests))
            self._wait(self._applications_run, "the applications", 900)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop()

    def resolve(self, _url: str) -> str:
        """The front door's URL: Serve's ingress."""
        return f"http://127.0.0.1:{serve_config(self.manifests)['http_options']['port']}"

    def applications(self) -> dict[str, Any]:
        """Name -> what the dashboard says of it."""
        found: dict[str, Any] = self._call("GET", "/api/serve/applications/")["applications"]
        return found

    def _resources(self) -> dict[str, float]:
        """What the pods of all groups would bring, as their start parameters say."""
        total: Counter[str] = Counter()
        for group in self._cluster["workerGroupSpecs"]:
            # KubeRay passes the parameter through a shell, which takes the outer quotes off.
            resources = json.loads(json.loads(group["rayStartParams"]["resources"].strip("'")))
            for name, amount in resources.items():
                total[name] += amount * group["replicas"]
        return dict(total)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._dashboard}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _dashboard_answers(self) -> bool:
        try:
            self._call("GET", "/api/serve/applications/")
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _applications_run(self) -> bool:
        try:
            found = self.applications()
        except (urllib.error.URLError, OSError):
            return False
        failed = {n: a for n, a in found.items() if a["status"] == "DEPLOY_FAILED"}
        assert not failed, "\n".join(
            f"{name}: {text}"
            for name, application in failed.items()
            for text in (
                application["message"],
                *(d["message"] for d in application["deployments"].values()),
            )
        )
        return bool(found) and {a["status"] for a in found.values()} == {"RUNNING"}

    def _wait(self, done: Any, what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not done():
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < until, f"{what} did not come up"
            time.sleep(0.5)

    def _stop(self) -> None:
        """End what was started here, and nothing else: `ray stop` would end every Ray there is."""
        if self._process is None:
            return
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        for _ in range(3):  # what is being started meanwhile is found the next time
            # Some replace their title, and their environment with it: those are descendants.
            started = [p for p in {*self._started(), *descendants} if p.is_running()]
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, alive = psutil.wait_procs(started, timeout=10)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, timeout=5)
        self._process.wait(5)

    def _started(self) -> list[psutil.Process]:
        """Every process with our mark in its environment, whoever its parent is by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self._gcs):
                    found.append(process)
        return found
