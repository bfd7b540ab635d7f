"""One worker process: what listens, and the life cycle.

Order of the start: weights, EC connector, KV cache in its memory, the model's thread, gRPC, HTTP.
The end is the reverse, after what runs was given time to finish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from protocol.errors import Unavailable
from protocol.ids import new_id
from protocol.replica import Replica, ReplicaStatus
from serving.auth import require_token_beyond_loopback
from serving.http import edge
from serving.http_server import HttpServer
from serving.rpc_server import RpcServer
from telemetry.logs import logger
from telemetry.traces import Tracer
from telemetry.workers import WorkerMetrics
from workers.assembly import Parts, assemble, load_model
from workers.config import WorkerConfig
from workers.http_api import WorkerApi
from workers.service import WorkerService
from workers.status import StatusBoard

_log = logger(__name__)


class WorkerServer:
    """A worker with gRPC and HTTP.

    Args:
        config: what to serve, and how.
        registry: where metrics go, a private one if None.
    """

    def __init__(self, config: WorkerConfig, registry: CollectorRegistry | None = None) -> None:
        require_token_beyond_loopback(config.host, config.cluster_token)
        self._config = config
        self._metrics = WorkerMetrics(registry or CollectorRegistry())
        self._tracer = Tracer(config.tracing, config.otlp_endpoint)
        self._status = StatusBoard(self.status)
        self._parts: Parts | None = None
        self._rpc: RpcServer | None = None
        self._http: HttpServer | None = None
        self._replica: Replica | None = None
        self._draining = False

    @property
    def parts(self) -> Parts:
        """What the worker is made of, while it is up."""
        if self._parts is None:
            raise Unavailable("this worker is not up")
        return self._parts

    async def start(self) -> Replica:
        """Load the model, listen, and say who we are.

        Raises:
            InvalidRequest: a setting or the checkpoint cannot work; names it.
            Unavailable: an address is taken.
        """
        config = self._config
        began = time.monotonic()
        model = await asyncio.to_thread(load_model, config)
        parts = await assemble(config, model, self._metrics)
        self._parts = parts
        self._watch(parts)
        parts.engine.on_change = self._status.touch
        parts.engine.start()
        try:
            grpc_port = await self._listen_grpc(parts)
            http_port = await self._listen_http(parts)
        except BaseException:
            await self.stop()
            raise
        host = config.advertise_host or config.host
        host = f"[{host}]" if ":" in host else host
        self._replica = Replica(
            id=new_id(f"{config.role}-"),
            role=config.role,
            grpc=f"{host}:{grpc_port}",
            http=f"http://{host}:{http_port}",
            fingerprint=model.fingerprint,
            model=config.model_name,
            max_model_len=parts.max_model_len,
            has_vision=model.tower is not None,
        )
        _log.info(
            "worker ready",
            replica=self._replica.id,
            model=config.model_name,
            device=str(model.device),
            dtype=model.dtype_name,
            kv_blocks=parts.pool.num_blocks if parts.pool is not None else 0,
            seconds=round(time.monotonic() - began, 2),
        )
        return self._replica

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take nothing new, let what runs end within `drain_s`, stay readable, then close."""
        deadline = time.monotonic() + drain_s
        self._draining = True
        parts = self._parts
        if parts is not None:
            if parts.generator is not None:
                parts.generator.draining = True
            if parts.publisher is not None:
                parts.publisher.draining = True
            self._status.touch()
            await _until(lambda: _idle(parts), deadline)
        if self._rpc is not None:
            await self._rpc.stop(0)
        if self._http is not None:
            await self._http.stop(1)
        if parts is not None:
            await _until(lambda: _unread(parts), deadline)
            # The engine first: its cache lies in the connector's memory.
            await parts.engine.stop()
            await parts.connector.stop()
        await asyncio.to_thread(self._tracer.shutdown)
        self._parts = self._rpc = self._http = None

    def status(self) -> ReplicaStatus:
        """Our load now."""
        parts = self._parts
        if parts is None:
            return ReplicaStatus(ready=False, draining=self._draining)
        store = parts.connector.stats()
        scheduler, pool = parts.scheduler, parts.pool
        waiting = len(parts.encoder) if parts.encoder is not None else 0
        oldest = scheduler.oldest_waiting if scheduler is not None else None
        return ReplicaStatus(
            ready=parts.engine.alive and not self._draining,
            draining=self._draining,
            running=scheduler.num_running if scheduler is not None else 0,
            waiting=waiting + (scheduler.num_waiting if scheduler is not None else 0),
            kv_free=pool.num_free if pool is not None else 0,
            kv_total=pool.num_blocks if pool is not None else 0,
            store_used=store.used_bytes,
            store_capacity=store.capacity_bytes,
            queue_age_s=0.0 if oldest is None else round(time.monotonic() - oldest, 1),
        )

    async def _listen_grpc(self, parts: Parts) -> int:
        config = self._config
        self._rpc = RpcServer(config.host, config.grpc_port, config.cluster_token)
        WorkerService(
            self._describe,
            self._status,
            parts.publisher,
            parts.generator,
            parts.connector,
            config.ec.lease_s,
            self._metrics,
            self._tracer,
        ).register(self._rpc)
        return await self._rpc.start()

    async def _listen_http(self, parts: Parts) -> int:
        config = self._config
        tokenizer_file = Path(config.model) / "tokenizer.json"
        tokenizer = (
            Tokenizer.from_file(str(tokenizer_file))
            if parts.generator is not None and tokenizer_file.is_file()
            else None
        )
        api = WorkerApi(
            config,
            parts.publisher,
            parts.generator,
            tokenizer,
            parts.max_model_len,
            lambda: parts.engine.alive and not self._draining,
            self._metrics,
        )
        app = edge(
            api.routes(),
            api_keys=config.api_keys,
            protect_metrics=config.protect_metrics,
            max_body_bytes=config.max_body_bytes,
        )
        self._http = HttpServer(app, config.host, config.http_port)
        return await self._http.start()

    def _describe(self) -> Replica:
        if self._replica is None:
            raise Unavailable("this worker is starting")
        return self._replica

    def _watch(self, parts: Parts) -> None:
        """Let the gauges read what they show when they are scraped."""
        metrics = self._metrics
        if parts.encoder is not None:
            encoder = parts.encoder
            metrics.encoder_waiting.set_function(lambda: len(encoder))
        if parts.scheduler is not None and parts.pool is not None:
            scheduler, pool = parts.scheduler, parts.pool
            metrics.running.set_function(lambda: scheduler.num_running)
            metrics.waiting.set_function(lambda: scheduler.num_waiting)
            metrics.kv_pinned.set_function(lambda: scheduler.num_pinned)
            metrics.kv_used.set_function(lambda: pool.num_used)
            metrics.kv_total.set_function(lambda: pool.num_blocks)


def _idle(parts: Parts) -> bool:
    return not (parts.generator and parts.generator.open) and not (
        parts.publisher and parts.publisher.open
    )


def _unread(parts: Parts) -> bool:
    """Whether no peer reads from us, nor is to."""
    stats = parts.connector.stats()
    return not (stats.leases or stats.offers)


async def _until(condition: Callable[[], bool], deadline: float) -> None:
    """Wait for a condition that nobody announces, at most until `deadline`."""
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
