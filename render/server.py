"""The render server: the renderer behind HTTP and gRPC, with its own store of pixels."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec
from prometheus_client import CollectorRegistry

from ec_connector.connector import EcConnector
from ec_connector.owners import KeyOwners
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, Unavailable
from protocol.ids import new_id
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.replica import Replica, ReplicaStatus
from protocol.rpc import (
    DESCRIBE,
    RENDER,
    RENDER_RELEASE,
    STATUS,
    Empty,
    ReleaseCall,
    RenderCall,
    Rendered,
)
from render import anthropic, responses
from render.anthropic import MessagesRequest
from render.checkpoint import fingerprint, resolve
from render.config import RenderConfig
from render.converted import Converted
from render.derender import HfDerenderer
from render.derender_http import DerenderService
from render.features import Inline, Published, TensorSink
from render.http_api import HttpApi
from render.renderer import Renderer, prompts
from render.responses import ResponsesRequest
from serving.auth import require_token_beyond_loopback
from serving.http import decode_json, edge
from serving.http_server import HttpServer
from serving.rpc_server import RpcServer
from telemetry.render import RenderMetrics

_STATUS_INTERVAL_S = 0.1
_STATUS_HEARTBEAT_S = 5.0
_DRAIN_INTERVAL_S = 0.05


class RenderServer:
    """One render replica.

    Args:
        config: everything that it can be told.
    """

    def __init__(self, config: RenderConfig) -> None:
        self.config = config
        self._metrics = RenderMetrics(CollectorRegistry())
        self._owners = KeyOwners()
        self._draining = False
        self._running = 0
        self._replica: Replica | None = None

    async def start(self) -> Replica:
        """Load the model's files, start the media processes, and serve.

        Raises:
            InvalidRequest: the configuration or the model cannot be served.
            Unavailable: an address is taken.
        """
        config = self.config
        require_token_beyond_loopback(config.host, config.cluster_token)
        path = await asyncio.to_thread(resolve, config.model)
        self._renderer = await asyncio.to_thread(Renderer, config, path, self._metrics)
        derenderer = await asyncio.to_thread(
            HfDerenderer,
            str(path),
            reasoning_parser=config.reasoning_parser,
            tool_parser=config.tool_parser,
        )
        ec = msgspec.structs.replace(
            config.ec, cluster_token=config.ec.cluster_token or config.cluster_token
        )
        self._ec = EcConnector(ec, fingerprint(path), self._metrics.registry)
        service = DerenderService(derenderer, config.name, self._renderer.max_model_len)
        self._api = HttpApi(self._renderer, service, self._metrics, self._refuse_if_draining)
        self._http = HttpServer(
            edge(
                self._api.routes(),
                api_keys=config.api_keys,
                protect_metrics=config.protect_metrics,
                max_body_bytes=config.max_body_bytes,
            ),
            config.host,
            config.http_port,
        )
        self._rpc = RpcServer(config.host, config.grpc_port, config.cluster_token)
        self._rpc.add_unary(RENDER, self._render)
        self._rpc.add_unary(RENDER_RELEASE, self._release)
        self._rpc.add_unary(DESCRIBE, self._describe)
        self._rpc.add_stream(STATUS, self._status)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._renderer.stop)
            await self._renderer.start()
            undo.push_async_callback(self._ec.stop)
            await self._ec.start()
            undo.push_async_callback(self._rpc.stop, 0.0)
            grpc_port = await self._rpc.start()
            http_port = await self._http.start()
            undo.pop_all()
        host = f"[{config.host}]" if ":" in config.host else config.host
        self._replica = Replica(
            id=new_id("render-"),
            role="render",
            grpc=f"{host}:{grpc_port}",
            http=f"http://{host}:{http_port}",
            model=config.name,
            max_model_len=self._renderer.max_model_len,
        )
        return self._replica

    async def stop(self, drain_s: float) -> None:
        """Take nothing new, end what runs, keep pixels until released; all within `drain_s`."""
        self._draining = True
        deadline = time.monotonic() + drain_s
        # Nothing signals that the last lease is over, so it is asked for.
        while time.monotonic() < deadline and (self._busy() or self._ec.stats().pinned):  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_INTERVAL_S)
        await self._rpc.stop(0.0)
        await self._http.stop(1.0)
        await self._renderer.stop()
        await self._ec.stop()

    def _busy(self) -> bool:
        return self._running > 0 or self._api.running > 0

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Unavailable("the render server is stopping", None, "render")

    def status(self) -> ReplicaStatus:
        """Load of this moment."""
        stats = self._ec.stats()
        return ReplicaStatus(
            ready=self._replica is not None and not self._draining,
            draining=self._draining,
            running=self._running + self._api.running,
            waiting=self._renderer.pending_media,
            store_used=stats.used_bytes,
            store_capacity=stats.capacity_bytes,
        )

    async def _render(self, call: RenderCall, deadline: Deadline) -> Rendered:
        self._refuse_if_draining()
        if not call.publish:
            return await self._rendered(call, Inline(), deadline)
        sink = Published(self._ec, call.lease_s)
        with self._owners.running(call.request_id) as running:
            try:
                rendered = await self._rendered(call, sink, deadline)
            except BaseException:
                self._ec.retire(sink.keys)
                raise
            self._ec.retire(self._owners.add(call.request_id, sink.keys, running))
            return rendered

    async def _rendered(self, call: RenderCall, sink: TensorSink, deadline: Deadline) -> Rendered:
        self._running += 1
        try:
            match call.endpoint:
                case "chat":
                    chat = decode_json(call.body, ChatCompletionRequest)
                    return Rendered(
                        [await self._renderer.chat(chat, call.request_id, sink, deadline)]
                    )
                case "completions":
                    completion = decode_json(call.body, CompletionRequest)
                    ids = [
                        f"{call.request_id}-{i}" if i else call.request_id
                        for i in range(len(prompts(completion)))
                    ]
                    return Rendered(
                        await self._renderer.completions(completion, ids, sink, deadline)
                    )
                case "responses":
                    asked = decode_json(call.body, ResponsesRequest)
                    return await self._converted(responses.to_chat(asked), call, sink, deadline)
                case "messages":
                    message = decode_json(call.body, MessagesRequest)
                    return await self._converted(anthropic.to_chat(message), call, sink, deadline)
        finally:
            self._running -= 1

    async def _converted(
        self, converted: Converted, call: RenderCall, sink: TensorSink, deadline: Deadline
    ) -> Rendered:
        return Rendered(
            [await self._renderer.converted(converted, call.request_id, sink, deadline)]
        )

    async def _release(self, call: ReleaseCall, _deadline: Deadline) -> Empty:
        self._ec.retire([*call.keys, *self._owners.take(call.request_ids)])
        return Empty()

    async def _describe(self, _call: Empty, _deadline: Deadline) -> Replica:
        if self._replica is None:
            raise InvalidRequest("the server is starting")
        return self._replica

    async def _status(self, _call: Empty, _deadline: Deadline) -> AsyncIterator[ReplicaStatus]:
        loop = asyncio.get_running_loop()
        last: ReplicaStatus | None = None
        sent = 0.0
        while True:
            status = self.status()
            if status != last or loop.time() - sent > _STATUS_HEARTBEAT_S:
                last, sent = status, loop.time()
                yield status
            await asyncio.sleep(_STATUS_INTERVAL_S)
