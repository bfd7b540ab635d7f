"""`triptych serve`: a cluster on this machine, from the first check to the last process.

Runs in the user's terminal: progress while it starts, one line per error, a clean end on a
signal. Torch and transformers are never imported here.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from deploy import demo_request, wiring
from deploy.config import ClusterConfig, WorkerStage
from deploy.model_source import resolve
from deploy.placement import place
from deploy.ports import require_free
from deploy.progress import Progress
from deploy.ray_environment import temporary_root
from deploy.ray_instance import RayInstance
from deploy.signals import StopSignal
from protocol.errors import Unavailable
from serving.auth import new_token

_POLL_S = 0.4
_HEALTH_TIMEOUT_S = 2.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _Stopped(Exception):
    """A signal came while the cluster was starting."""


def launch(config: ClusterConfig) -> None:
    """Start the cluster, wait for a signal, stop it.

    Raises:
        ConfigError: the model does not exist, or more GPUs are asked for than there are.
        Unavailable: the port is taken, or a stage cannot start.
    """
    require_free(config.host, config.port)
    resolve(config.model, config.revision)
    if not config.cluster_token:
        config = msgspec.structs.replace(config, cluster_token=new_token())
    wiring.require_token(config)
    # Ray prints notes of its own on stdout; ours is for the URL and the line to paste.
    out = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    console = Console(stderr=True)
    with (
        contextlib.redirect_stdout(sys.stderr),
        tempfile.TemporaryDirectory(prefix="triptych-", dir=temporary_root()) as directory,
        StopSignal() as stop,
    ):
        with contextlib.suppress(_Stopped):
            _serve(config, Path(directory), stop, console, out)
        console.print("stopped")


def _serve(
    config: ClusterConfig, directory: Path, stop: StopSignal, console: Console, out: Console
) -> None:
    with Progress(console) as progress:
        progress.doing("starting Ray")
        with RayInstance(directory) as instance:
            stop.install()
            try:
                config = _start(config, instance, progress, stop)
                progress.stop()
                _announce(config, out, progress.elapsed_s)
                stop.wait()
            finally:
                progress.stop()
                if stop.is_set:
                    console.print("stopping; Ctrl-C again does not wait for running requests")
                instance.shutdown()


def _start(
    config: ClusterConfig, instance: RayInstance, progress: Progress, stop: StopSignal
) -> ClusterConfig:
    """Bring every stage up; the configuration as it was placed on the GPUs."""
    gpus = instance.gpus
    config = place(config, gpus, len(os.sched_getaffinity(0)))
    progress.done(f"Ray, {gpus or 'no'} GPU{'' if gpus == 1 else 's'} visible")
    for line in _map(config):
        progress.note(line)
    _unless(stop)
    progress.doing("starting Serve")
    instance.serve(config.host, config.port)
    progress.done(f"HTTP on {config.host}:{config.port}")
    _unless(stop)
    # Late: this imports Ray Serve, which needs the environment of RayInstance.
    from deploy import app

    instance.deploy(
        {app.STAGES_APPLICATION: app.stages(config), app.APPLICATION: app.coordinator(config)},
        app.APPLICATION,
    )
    _await_stages([name for name, _ in config.stages()], instance, progress, stop)
    progress.doing("waiting for the coordinator to see every stage")
    while not _is_healthy(config):
        _unless(stop, _POLL_S)
    return config


def _await_stages(
    pending: list[str], instance: RayInstance, progress: Progress, stop: StopSignal
) -> None:
    while pending:
        states = instance.states()
        for stage in list(pending):
            state = states.get(stage)
            if state is not None and state.failure:
                raise Unavailable(
                    f"{stage} cannot start: {state.failure} (logs: {instance.log_directory})"
                )
            if state is not None and state.up:
                pending.remove(stage)
                progress.done(f"{stage}, {state.running} running")
        progress.doing(f"starting {', '.join(pending)}")
        _unless(stop, _POLL_S)


def _map(config: ClusterConfig) -> list[str]:
    """A line per stage: how many replicas, and where they run."""
    lines = []
    for name, stage in config.stages():
        gpus = stage.num_gpus if isinstance(stage, WorkerStage) else None
        where = "CPU" if not gpus else "a GPU each" if gpus == 1 else f"{gpus:g} of a GPU each"
        scaling = stage.autoscaling_config
        count = (
            f"{scaling.get('min_replicas', 1)}-{scaling.get('max_replicas', 1)}"
            if scaling is not None
            else str(stage.count)
        )
        lines.append(f"{name:<15}{count:>4} x {where}")
    return lines


def _unless(stop: StopSignal, wait_s: float = 0.0) -> None:
    if stop.wait(wait_s):
        raise _Stopped


def _url(config: ClusterConfig) -> str:
    host = _ANY_ADDRESS.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _is_healthy(config: ClusterConfig) -> bool:
    """Whether the coordinator says that every stage has a ready replica."""
    host = _ANY_ADDRESS.get(config.host, config.host)
    connection = http.client.HTTPConnection(host, config.port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _announce(config: ClusterConfig, out: Console, ready_s: float) -> None:
    url = _url(config)
    out.print(f"\n[bold green]{config.model_name}[/] is ready at [bold]{url}[/] ({ready_s:.0f} s)")
    out.print("Try it:\n")
    out.print(demo_request.curl(config, url), markup=False)
    out.print("\nCtrl-C stops it.")
