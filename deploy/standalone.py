"""Our servers as plain processes, without Ray: start, say where, wait for a signal, drain."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import typer
import uvloop

from coordinator.config import CoordinatorConfig
from coordinator.membership.base import Membership
from deploy.config import served_name
from deploy.model_source import resolve
from deploy.ports import require_free
from protocol.replica import Replica
from render.config import RenderConfig
from serving.auth import require_token_beyond_loopback
from telemetry import logs
from workers.config import WorkerConfig


def run_render(config: RenderConfig, revision: str, drain_s: float, log_level: str) -> None:
    """Serve render until a signal.

    Raises:
        InvalidRequest: it would listen beyond loopback without a cluster token.
        Unavailable: a port is taken.
    """
    logs.configure(log_level)
    require_token_beyond_loopback(config.host, config.cluster_token)
    _require_free(config.host, config.http_port, config.grpc_port)
    model = str(resolve(config.model, revision, weights=False))
    named = msgspec.structs.replace(
        config, model=model, served_model_name=served_name(config.model, config.served_model_name)
    )
    from render.server import RenderServer

    server = RenderServer(named)
    _run(_started(server.start), server.stop, drain_s)


def run_worker(config: WorkerConfig, drain_s: float, log_level: str) -> None:
    """Serve a worker until a signal; raises as `run_render` does."""
    logs.configure(log_level)
    require_token_beyond_loopback(config.host, config.cluster_token)
    _require_free(config.host, config.http_port, config.grpc_port)
    model = str(resolve(config.model, config.revision))
    named = msgspec.structs.replace(
        config, model=model, served_model_name=served_name(config.model, config.served_model_name)
    )
    from workers.server import WorkerServer

    server = WorkerServer(named)
    _run(_started(server.start), server.stop, drain_s)


def run_coordinator(
    config: CoordinatorConfig,
    model: str,
    revision: str,
    membership: Membership,
    drain_s: float,
    log_level: str,
) -> None:
    """Serve a coordinator over the replicas of a membership until a signal.

    Raises:
        Unavailable: the port is taken.
    """
    logs.configure(log_level)
    _require_free(config.host, config.port)
    from coordinator.server import CoordinatorServer
    from render.derender import HfDerenderer

    derenderer = HfDerenderer(str(resolve(model, revision, weights=False)))
    server = CoordinatorServer(config, membership, derenderer)

    async def start() -> str:
        return f"coordinator: {await server.start()}"

    _run(start, server.stop, drain_s)


def _started(start: Callable[[], Awaitable[Replica]]) -> Callable[[], Awaitable[str]]:
    async def started() -> str:
        replica = await start()
        return f"{replica.role}: gRPC {replica.grpc}, HTTP {replica.http or 'off'}"

    return started


def _run(
    start: Callable[[], Awaitable[str]], stop: Callable[[float], Awaitable[Any]], drain_s: float
) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        signalled = asyncio.Event()
        task = asyncio.current_task()

        def on_signal() -> None:
            if signalled.is_set() and task is not None:
                task.cancel()  # the second signal: no drain
            signalled.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        typer.echo(f"ready: {await start()}")
        try:
            await signalled.wait()
            await stop(drain_s)
        except asyncio.CancelledError:
            await stop(0.0)

    uvloop.run(serve())


def _require_free(host: str, *ports: int) -> None:
    for port in ports:
        if port:
            require_free(host, port)
