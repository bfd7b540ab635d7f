"""Thin shells that make our servers Ray Serve deployments: construct, describe, drain.

Traffic does not go through Serve's handles: workers and render serve gRPC themselves, and the
coordinator is the ASGI ingress.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import ray
from ray import serve
from starlette.types import ASGIApp

from deploy import feed, wiring
from deploy.autoscaling import LOAD
from deploy.config import ClusterConfig, convert
from deploy.model_source import resolve
from protocol.errors import Unavailable
from protocol.replica import Role
from telemetry import logs

_FOLLOW_RETRY_S = 0.2


class StageReplica:
    """A replica of render or of a worker role.

    Args:
        config: the cluster's configuration as plain data.
        role: what this replica does.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], role: Role
    ) -> None:
        cluster = convert(config, ClusterConfig)
        logs.configure(cluster.log_level)
        self._drain_s = cluster.drain_s
        self._server = await asyncio.to_thread(_server, cluster, role)
        self._replica = await self._server.start()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Who this is, for every router of this deployment."""
        described: dict[str, Any] = msgspec.to_builtins(self._replica)
        return described

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The load that `deploy.autoscaling` divides."""
        status = self._server.status()
        return {LOAD: float(status.running + status.waiting)}

    def check_health(self) -> None:
        """Have this replica replaced when it can do no more work.

        Raises:
            Unavailable: it is neither ready nor draining.
        """
        status = self._server.status()
        if not (status.ready or status.draining):
            raise Unavailable(f"{self._replica.role} replica {self._replica.id} is not ready")

    async def __del__(self) -> None:
        """Finish what runs; Serve awaits this before it ends the process."""
        server = getattr(self, "_server", None)
        if server is not None:
            await server.stop(self._drain_s)


class StagesRoot:
    """The root of the stages' application; nothing goes through it.

    No stage can be the root: behind HAProxy a root has no router, and membership needs one.
    """

    def __init__(self, stages: dict[Role, Any]) -> None:
        self._stages = stages


@serve.ingress()
class CoordinatorReplica:
    """A replica of the coordinator, behind Serve's HTTP ingress.

    Args:
        config: the cluster's configuration as plain data.
        sources: role -> (deployment, application) of the stage's replicas, or a handle to it.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], sources: dict[Role, Any]
    ) -> None:
        cluster = convert(config, ClusterConfig)
        logs.configure(cluster.log_level)
        self._handles: dict[Role, Any] = {}
        self._followers = [
            asyncio.create_task(self._follow(role, source)) for role, source in sources.items()
        ]
        self._server = await asyncio.to_thread(_coordinator, cluster)
        await self._server.open()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Serve mounts, once the constructor is done."""
        asgi: ASGIApp = self._server.asgi
        return asgi

    async def __del__(self) -> None:
        """Serve has waited for the HTTP requests already."""
        for task in getattr(self, "_followers", []):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        server = getattr(self, "_server", None)
        if server is not None:
            await server.close()

    async def _follow(self, role: Role, source: Any) -> None:
        """Hold a handle, whose router feeds the membership; wait for a stage not deployed yet."""
        while isinstance(source, (tuple, list)):
            deployment, application = source
            try:
                source = await asyncio.to_thread(
                    serve.get_deployment_handle, deployment, application
                )
            except KeyError:
                await asyncio.sleep(_FOLLOW_RETRY_S)
        self._handles[role] = source.options()  # this starts the router; no request is ever sent


def _server(cluster: ClusterConfig, role: Role) -> Any:
    """The server of a role. In a thread: the imports and a download take seconds."""
    host = cluster.cluster_host
    if host == "auto":
        host = ray.util.get_node_ip_address()
    model = str(resolve(cluster.model, cluster.revision, weights=role != "render"))
    if role == "render":
        from render.server import RenderServer

        return RenderServer(
            msgspec.structs.replace(wiring.render_config(cluster, host), model=model)
        )
    from workers.server import WorkerServer

    return WorkerServer(
        msgspec.structs.replace(wiring.worker_config(cluster, role, host), model=model)
    )


def _coordinator(cluster: ClusterConfig) -> Any:
    from coordinator.server import CoordinatorServer
    from render.derender import HfDerenderer

    model = str(resolve(cluster.model, cluster.revision, weights=False))
    render = wiring.render_config(cluster, "127.0.0.1")
    derenderer = HfDerenderer(
        model, reasoning_parser=render.reasoning_parser, tool_parser=render.tool_parser
    )
    return CoordinatorServer(wiring.coordinator_config(cluster), feed.membership, derenderer)
