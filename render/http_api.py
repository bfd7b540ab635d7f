"""The HTTP endpoints of a render server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TriptychError
from protocol.generate import GenerateRequest
from protocol.ids import is_valid_id, new_id
from protocol.openai import (
    ChatCompletionRequest,
    ChatDerenderRequest,
    CompletionDerenderRequest,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from render import anthropic, responses
from render.anthropic import MessagesRequest
from render.derender_http import DerenderService
from render.features import Inline, Spliced
from render.openapi import document
from render.renderer import Renderer, prompts
from render.responses import ResponsesRequest
from render.tokenize_api import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from render.wire import to_json
from serving.http import JsonParts, json_bytes, json_response, read_json
from telemetry.metrics import exposition
from telemetry.render import RenderMetrics

VERSION = "0.1.0"
_REQUEST_TIMEOUT_S = 120.0
_THREAD_TOKENS = 2048
"""Answers longer than this are derendered in a thread."""

Handler = Callable[[Request], Awaitable[Any]]


class HttpApi:
    """Routes over a renderer and a derender service.

    Args:
        check_open: raises where the server takes nothing new.

    Attributes:
        running: requests in work.
    """

    def __init__(
        self,
        renderer: Renderer,
        derender: DerenderService,
        metrics: RenderMetrics,
        check_open: Callable[[], None],
    ) -> None:
        self._renderer = renderer
        self._derender = derender
        self._metrics = metrics
        self._check_open = check_open
        self.running = 0
        self._created = int(time.time())

    def routes(self) -> list[BaseRoute]:
        """Every endpoint; paths as in the contract."""
        posts: dict[str, Handler] = {
            "/v1/chat/completions/render": self._render_chat,
            "/v1/completions/render": self._render_completions,
            "/v1/responses/render": self._render_responses,
            "/v1/messages/render": self._render_messages,
            "/v1/chat/completions/derender": self._derender_chat,
            "/v1/completions/derender": self._derender_completions,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v1/models": self._models,
            "/openapi.json": self._openapi,
            "/version": self._version,
            "/health": self._health,
            "/live": _ok,
            "/ping": _ok,
            "/metrics": self._exposition,
        }
        return [
            *(Route(path, self._counted(path, h), methods=["POST"]) for path, h in posts.items()),
            *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        ]

    def _counted(self, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            status = 500
            with (
                self._metrics.running.track_inprogress(),
                self._metrics.seconds.labels(path).time(),
            ):
                self.running += 1
                try:
                    self._check_open()
                    answer = await handler(request)
                    response = answer if isinstance(answer, Response) else json_response(answer)
                    status = response.status_code
                    return response
                except TriptychError as error:
                    status = error.status
                    raise
                finally:
                    self.running -= 1
                    self._metrics.requests.labels(path, str(status)).inc()

        return counted

    async def _render_chat(self, http: Request) -> Any:
        request = await read_json(http, ChatCompletionRequest)
        request_id = "chatcmpl-" + _id_of(http, request.request_id)
        sink = Spliced()
        rendered = await self._renderer.chat(
            request, request_id, sink, Deadline.after(_REQUEST_TIMEOUT_S)
        )
        return _spliced(rendered, sink)

    async def _render_completions(self, http: Request) -> Any:
        request = await read_json(http, CompletionRequest)
        request_id = "cmpl-" + _id_of(http, request.request_id)
        count = len(prompts(request))
        ids = [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]
        rendered = await self._renderer.completions(
            request, ids, Inline(), Deadline.after(_REQUEST_TIMEOUT_S)
        )
        return [to_json(one) for one in rendered]

    async def _render_responses(self, http: Request) -> Any:
        request = await read_json(http, ResponsesRequest)
        given = _id_given(http, request.request_id)
        request_id = given or new_id("resp_")  # what is given stands as it is, here alone
        sink = Spliced()
        rendered = await self._renderer.converted(
            responses.to_chat(request), request_id, sink, Deadline.after(_REQUEST_TIMEOUT_S)
        )
        return _spliced(responses.with_transfer_params(request, rendered), sink)

    async def _render_messages(self, http: Request) -> Any:
        request = await read_json(http, MessagesRequest)
        request_id = "chatcmpl-" + _id_of(http, request.request_id)
        sink = Spliced()
        rendered = await self._renderer.converted(
            anthropic.to_chat(request), request_id, sink, Deadline.after(_REQUEST_TIMEOUT_S)
        )
        return _spliced(rendered, sink)

    async def _derender_chat(self, http: Request) -> Any:
        call = await read_json(http, ChatDerenderRequest)
        self._renderer.check_model(call.model)
        if call.stream:
            return self._derender.chat_chunk(call)
        size = sum(len(c.token_ids) for c in _choices(call.generate_response))
        return await _run(size, lambda: self._derender.chat(call))

    async def _derender_completions(self, http: Request) -> Any:
        call = await read_json(http, CompletionDerenderRequest)
        self._renderer.check_model(call.model)
        if call.stream:
            return self._derender.completion_chunk(call)
        size = sum(len(c.token_ids) for r in call.generate_responses or [] for c in _choices(r))
        return await _run(size, lambda: self._derender.completion(call))

    async def _tokenize(self, http: Request) -> Any:
        return await tokenize(self._renderer, await read_json(http, TokenizeRequest))

    async def _detokenize(self, http: Request) -> Any:
        return detokenize(self._renderer, await read_json(http, DetokenizeRequest))

    async def _models(self, _http: Request) -> Response:
        config = self._renderer.config
        card = ModelCard(
            id=config.name,
            created=self._created,
            max_model_len=self._renderer.max_model_len,
            root=config.model,
        )
        return json_response(ModelList([card]))

    async def _health(self, _http: Request) -> Response:
        self._check_open()
        return Response()

    async def _openapi(self, _http: Request) -> Response:
        return json_response(document(VERSION))

    async def _version(self, _http: Request) -> Response:
        return json_response({"version": VERSION})

    async def _exposition(self, _http: Request) -> Response:
        text, kind = exposition(self._metrics.registry)
        return Response(text, media_type=kind)


def _spliced(request: GenerateRequest, sink: Spliced) -> Response:
    return JsonParts(sink.split(json_bytes(to_json(request))))


async def _ok(_http: Request) -> Response:
    return Response()


async def _run(size: int, work: Callable[[], Any]) -> Any:
    """Short work here, long work in a thread."""
    return work() if size <= _THREAD_TOKENS else await asyncio.to_thread(work)


def _choices(response: Any) -> list[Any]:
    return [] if response is None else list(response.choices)


def _id_of(http: Request, asked: str | None) -> str:
    """The id from the header, the body, or a fresh one."""
    return _id_given(http, asked) or new_id()


def _id_given(http: Request, asked: str | None) -> str | None:
    given = http.headers.get("x-request-id") or asked
    if given is not None and not is_valid_id(given):
        raise InvalidRequest(
            "request_id must be printable ASCII, at most 256 characters", "request_id"
        )
    return given
