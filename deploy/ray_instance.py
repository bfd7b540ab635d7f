"""A private Ray instance with Serve on this machine: start, deploy, look, shut down."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deploy import leftovers
from deploy.ray_environment import variables
from protocol.errors import Unavailable

_OBJECT_STORE_BYTES = 100 * 2**20
"""Enough for Serve's own messages; payloads do not go through Ray."""

_END_S = 5.0
"""How long Ray's last processes may take to end by themselves."""

_POLL_S = 0.3


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

    Attributes:
        log_directory: where the replicas' output goes.
    """

    log_directory: Path

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._marker = leftovers.new_marker()

    def __enter__(self) -> RayInstance:
        # Before the first import of Ray: it reads them while it is imported.
        os.environ.update(variables(self._directory) | self._marker)
        try:
            try:
                session = _start_ray()
            except Unavailable:
                # Ray gives its processes 30 s, which a busy machine can exceed; the second time
                # the files are in memory.
                self.__exit__()
                session = _start_ray()
        except BaseException:
            self.__exit__()
            raise
        self.log_directory = session / "logs"
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        leftovers.end(self._marker[leftovers.MARKER], _END_S)

    @property
    def gpus(self) -> int:
        """GPUs that Ray found and that CUDA_VISIBLE_DEVICES lets us use."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

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
        except Exception as error:  # noqa: BLE001 - a RayError, a RuntimeError or a TimeoutError
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
        """Stop the applications; running requests may finish within their drain time.

        Gives up where Ray itself is gone, as after a signal to the whole process group.
        """
        stopping = threading.Thread(target=_shut_down_serve, daemon=True)
        # Ray prints about the controller that ends, which is what was asked for.
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            stopping.start()
            while stopping.is_alive() and self._is_alive():
                stopping.join(_POLL_S)

    def _is_alive(self) -> bool:
        names = {process.name() for process in leftovers.marked(self._marker[leftovers.MARKER])}
        return {"gcs_server", "raylet"} <= names


def _start_ray() -> Path:
    """Start Ray; returns its session's directory.

    Raises:
        Unavailable: it does not come up.
    """
    import ray

    try:
        context = ray.init(
            address="local",
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            object_store_memory=_OBJECT_STORE_BYTES,
        )
    except Exception as error:  # noqa: BLE001 - Ray raises bare ones
        raise Unavailable(f"Ray cannot start: {_last_line(str(error))}") from None
    return Path(context.address_info["session_dir"])


def _shut_down_serve() -> None:
    from ray import serve

    with contextlib.suppress(Exception):  # whatever it is, ray.shutdown comes next
        serve.shutdown()


def _last_line(text: str) -> str:
    """What a traceback is about: its last line that is not decoration."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "no reason given")
