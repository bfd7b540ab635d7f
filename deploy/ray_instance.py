"""A private Ray instance with Serve on this machine: start, deploy, look, shut down."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deploy.ray_environment import variables
from protocol.errors import Unavailable

_OBJECT_STORE_BYTES = 100 * 2**20
"""Enough for Serve's own messages; payloads do not go through Ray."""


class StageState(NamedTuple):
    """Where a stage stands.

    Attributes:
        up: whether all its replicas run.
        running: how many do.
        failure: why it cannot start, or "".
    """

    up: bool
    running: int
    failure: str


class RayInstance:
    """Ray and Serve while it is entered.

    Args:
        directory: for the HTTP proxy's files.
        log_level: of Ray's own processes.
    """

    def __init__(self, directory: Path, log_level: str) -> None:
        self._directory = directory
        self._log_level = log_level

    def __enter__(self) -> RayInstance:
        # Before the first import of Ray: it reads them while it is imported.
        os.environ.update(variables(self._directory))
        import ray

        ray.init(
            address="local",
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            object_store_memory=_OBJECT_STORE_BYTES,
        )
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()

    @property
    def gpus(self) -> int:
        """GPUs that Ray found and that CUDA_VISIBLE_DEVICES lets us use."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    @property
    def log_directory(self) -> Path:
        """Where the replicas' output goes."""
        import ray

        return Path(ray.get_runtime_context().get_session_dir()) / "logs"

    def serve(self, host: str, port: int) -> None:
        """Start Serve and its HTTP proxy.

        Raises:
            Unavailable: the proxy cannot listen.
        """
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": host, "port": port},
                logging_config={"log_level": "ERROR", "enable_access_log": False},
            )
        except RuntimeError as error:
            raise Unavailable(f"the HTTP proxy cannot start: {_last_line(str(error))}") from None

    def deploy(self, applications: Mapping[str, Any], ingress: str) -> None:
        """Have Serve start the applications; returns at once.

        Args:
            applications: name -> Serve application.
            ingress: the one that gets the HTTP traffic.
        """
        from ray import serve

        serve.run_many(
            [
                serve.RunTarget(app, name, "/" if name == ingress else None)
                for name, app in applications.items()
            ],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def states(self) -> dict[str, StageState]:
        """Deployment -> where it stands, of every application."""
        from ray import serve

        found = {}
        for app in serve.status().applications.values():
            failed = app.status == "DEPLOY_FAILED"
            for name, deployment in app.deployments.items():
                reason = deployment.message or app.message
                found[name] = StageState(
                    up=deployment.status == "HEALTHY",
                    running=deployment.replica_states.get("RUNNING", 0),
                    failure=_last_line(reason)
                    if deployment.status in {"DEPLOY_FAILED", "UNHEALTHY"} or failed
                    else "",
                )
        return found

    def shutdown(self) -> None:
        """Stop the applications; running requests may finish within their drain time."""
        from ray import serve

        # Ray prints about the controller that ends, which is what was asked for.
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.suppress(RuntimeError),
        ):
            serve.shutdown()


def _last_line(text: str) -> str:
    """What a traceback is about: its last line that is not decoration."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "no reason given")
