"""Composes the coordinator: replicas, stages, pipeline, HTTP."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import ASGIApp

from coordinator.admission import Admission
from coordinator.api.chat import ChatEndpoint
from coordinator.api.completions import CompletionsEndpoint
from coordinator.api.generate import GenerateEndpoint
from coordinator.api.proxy import PATHS, RenderProxy
from coordinator.api.status import StatusEndpoints
from coordinator.clients.base import StageClient
from coordinator.clients.foreign import ForeignClient
from coordinator.clients.native import NativeClient
from coordinator.concurrency import Janitor
from coordinator.config import CoordinatorConfig
from coordinator.directory import Directory
from coordinator.front import Front
from coordinator.membership.base import Membership
from coordinator.pipeline import Pipeline
from coordinator.replicas import ReplicaPool
from coordinator.retry import Budget, Retries
from coordinator.stages.decode import DecodeStage
from coordinator.stages.encode import EncodeStage
from coordinator.stages.prefill import PrefillStage
from coordinator.stages.render import RenderStage
from protocol.derender import Derenderer
from protocol.replica import Replica
from serving.http import edge
from serving.http_server import HttpServer
from telemetry.coordinator import CoordinatorMetrics
from telemetry.traces import Tracer


class CoordinatorServer:
    """The front door.

    `start` and `stop` run it with its own HTTP server. Where something else serves HTTP (Ray
    Serve), `open` and `close` run the rest and `asgi` is mounted.

    Args:
        config: see CoordinatorConfig.
        membership: says who is there.
        derenderer: turns tokens into text.
    """

    def __init__(
        self, config: CoordinatorConfig, membership: Membership, derenderer: Derenderer
    ) -> None:
        self._config = config
        self._membership = membership
        self._janitor = Janitor()
        self.registry = CollectorRegistry()
        self.pool = ReplicaPool(config, self._connect)
        self._directory = Directory(config.directory_entries)
        self.pool.on_leave = lambda member: self._directory.forget_holder(member.id)
        self.pool.on_holdings = lambda member, notice: self._directory.hear(
            member.cohort, member.id, notice
        )
        self._metrics = CoordinatorMetrics(self.registry)
        self._tracer = Tracer(config.tracing, config.otlp_endpoint)
        self.admission = Admission(config.admission)
        retries = Retries(Budget())
        pipeline = Pipeline(
            self.pool,
            EncodeStage(self.pool, self._directory, retries, config),
            PrefillStage(self._janitor, config),
            DecodeStage(config),
            retries,
            config,
        )
        render = RenderStage(self.pool, self._janitor, retries)
        self._front = Front(
            config,
            self.pool,
            render,
            pipeline,
            derenderer,
            retries,
            self.admission,
            self._metrics,
            self._tracer,
        )
        self._proxy = RenderProxy(self._front)
        self._http: HttpServer | None = None
        self.asgi: ASGIApp = self._application()

    async def start(self) -> str:
        """Open and listen; returns the base URL.

        Raises:
            Unavailable: the address is taken.
        """
        await self.open()
        self._http = HttpServer(self.asgi, self._config.host, self._config.port)
        try:
            port = await self._http.start()
        except BaseException:
            await self.close()
            raise
        host = self._config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self, drain_s: float = 5.0) -> None:
        """Refuse new requests, let running ones end within `drain_s`, close."""
        if self._http is not None:
            await self._http.stop(drain_s)
            self._http = None
        await self.close()

    async def open(self) -> None:
        """Begin to follow the replicas."""
        self.pool.start(self._membership)

    async def close(self) -> None:
        """Finish clean-up and close the connections."""
        await self._janitor.stop()
        await self._proxy.close()
        await self.pool.stop()
        await asyncio.to_thread(self._tracer.shutdown)

    def _connect(self, replica: Replica) -> StageClient:
        if replica.engine == "native":
            return NativeClient(replica.grpc, self._config.cluster_token)
        return ForeignClient(replica.http, self._config.foreign_api_key)

    def _application(self) -> ASGIApp:
        generate = GenerateEndpoint(self._front)
        status = StatusEndpoints(self._front, self.registry, self._directory)
        return edge(
            [
                Route("/v1/chat/completions", ChatEndpoint(self._front).__call__, methods=["POST"]),
                Route(
                    "/v1/completions", CompletionsEndpoint(self._front).__call__, methods=["POST"]
                ),
                Route("/inference/v1/generate", generate.generate, methods=["POST"]),
                Route("/inference/v1/abort_requests", generate.abort, methods=["POST"]),
                *(Route(path, self._proxy.__call__, methods=["POST"]) for path in PATHS),
                Route("/v1/models", status.models),
                Route("/health", status.health),
                Route("/live", status.live),
                Route("/ping", status.live),
                Route("/version", status.version),
                Route("/metrics", status.metrics),
            ],
            api_keys=self._config.api_keys,
            protect_metrics=self._config.protect_metrics,
            max_body_bytes=self._config.max_body_bytes,
        )
