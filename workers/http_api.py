"""The worker's HTTP: the scale-out endpoints of the contract, health and metrics.

Bodies and answers are those of wire-protocol §2 and §3, whoever the client is. What a call does
depends on the role: `encode` answers descriptors, `prefill` the first token and KV parameters, the
others generate.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from tokenizers import Tokenizer

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, SchemaViolation, TriptychError, body
from protocol.generate import GenerateRequest, GenerateResponse
from protocol.ids import new_id
from protocol.rpc import EncodeCall, EncodeItem
from protocol.transfer import ec_params
from serving.http import SSE_DONE, json_response, read_json, require_scale_out, sse
from telemetry.metrics import exposition
from telemetry.workers import WorkerMetrics
from workers.admission import check_model
from workers.answers import ID_PREFIX, Answer, Pacer
from workers.config import WorkerConfig
from workers.disconnect import Disconnected, EventStream, until_disconnect
from workers.generation import Generator
from workers.publisher import Publisher
from workers.service import counted, wrong_role
from workers.text_output import ChoiceDelta

_CLIENT_CLOSED = 499
"""Nobody reads it; it is for the log."""


class WorkerApi:
    """Routes of a worker.

    Args:
        config: of the worker.
        publisher: of the encode role, else None.
        generator: of the roles with a language model, else None.
        tokenizer: of the checkpoint, None where it has none.
        max_model_len: tokens of context.
        ready: whether new work is taken.
        metrics: of this worker.
    """

    def __init__(
        self,
        config: WorkerConfig,
        publisher: Publisher | None,
        generator: Generator | None,
        tokenizer: Tokenizer | None,
        max_model_len: int,
        ready: Callable[[], bool],
        metrics: WorkerMetrics,
    ) -> None:
        self._config = config
        self._publisher = publisher
        self._generator = generator
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._ready = ready
        self._metrics = metrics
        self._created = int(time.time())

    def routes(self) -> list[BaseRoute]:
        """For `serving.http.edge`."""
        return [
            Route("/inference/v1/generate", self.generate, methods=["POST"]),
            Route("/inference/v1/abort_requests", self.abort, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/ping", self.health, methods=["GET", "POST"]),
            Route("/live", self.live),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
        ]

    async def health(self, _request: Request) -> Response:
        """200 while new work is taken, else 503."""
        return Response(status_code=200 if self._ready() else 503)

    async def live(self, _request: Request) -> Response:
        """200 while the process is up."""
        return Response()

    async def version(self, _request: Request) -> Response:
        """The version of Triptych."""
        return json_response({"version": version("triptych")})

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        text, kind = exposition(self._metrics.registry)
        return Response(text, media_type=kind)

    async def models(self, _request: Request) -> Response:
        """The one model that is served."""
        card = {
            "id": self._config.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "triptych",
            "root": self._config.model_name,
            "parent": None,
            "max_model_len": self._max_model_len,
            "permission": [],
        }
        return json_response({"object": "list", "data": [card]})

    async def abort(self, request: Request) -> Response:
        """End requests by their response ids; unknown ones are fine."""
        require_scale_out(self._config.enable_scale_out)
        try:
            asked = msgspec.json.decode(await request.body())
        except (msgspec.DecodeError, RecursionError) as error:
            raise SchemaViolation(f"JSON decode error: {error}") from None
        ids = asked.get("request_ids") if isinstance(asked, dict) else None
        ids = [ids] if isinstance(ids, str) else ids
        if not isinstance(ids, list):
            raise InvalidRequest("Missing 'request_ids' in request body", "request_ids")
        for response_id in ids:
            if self._generator is not None and isinstance(response_id, str):
                self._generator.abort(response_id.removeprefix(ID_PREFIX))
        return Response()

    async def generate(self, request: Request) -> Response:
        """`/inference/v1/generate`, as JSON or as a stream of events."""
        require_scale_out(self._config.enable_scale_out)
        asked = await read_json(request, GenerateRequest)
        request_id = request.headers.get("x-request-id") or asked.request_id or new_id()
        asked = msgspec.structs.replace(asked, request_id=request_id)
        self._check_text(asked)
        deadline = Deadline.after(self._config.request_timeout_s)
        try:
            if asked.stream:
                events = self._events(asked, deadline)
                return EventStream(await until_disconnect(request, _first(events)), events)
            return json_response(await until_disconnect(request, self._answer(asked, deadline)))
        except Disconnected:
            return Response(status_code=_CLIENT_CLOSED)

    # --- what each role does -----------------------------------------------------------------

    def _check_text(self, asked: GenerateRequest) -> None:
        if self._tokenizer is None and asked.output_mode == "text":
            raise InvalidRequest(
                "output_mode='text' requires a tokenizer, but this server does not load one",
                "output_mode",
            )
        if self._tokenizer is None and asked.sampling_params.stop_strings:
            raise InvalidRequest(
                "stop strings are not supported without a tokenizer. Check stop strings on the "
                "coordinator, or use stop_token_ids.",
                "sampling_params.stop",
            )

    async def _answer(self, asked: GenerateRequest, deadline: Deadline) -> GenerateResponse:
        match self._config.role:
            case "encode":
                return await self._encode(asked, deadline)
            case "prefill":
                return await self._prefill(asked, deadline)
            case _:
                return await self._complete(asked, deadline)

    async def _encode(self, asked: GenerateRequest, deadline: Deadline) -> GenerateResponse:
        """Encode the items; no token is generated."""
        with counted(self._metrics, "encode", "encode"):
            check_model(asked.model, (self._config.model_name,))
            asked.refuse_unsupported()
            items = _encode_items(asked)
            params = None
            if items and self._publisher is not None:
                lease_s = self._config.ec.lease_s
                call = EncodeCall(asked.request_id or "", items, asked.cache_salt or "", lease_s)
                params = ec_params((await self._publisher.encode(call, deadline)).items)
            return self._start(asked, _ignore).response(ec=params, unfinished="stop")

    async def _prefill(self, asked: GenerateRequest, deadline: Deadline) -> GenerateResponse:
        """The first token of each choice, and where the KV blocks are."""
        with counted(self._metrics, "prefill", "prefill"):
            lease_s = self._config.ec.lease_s
            prefilled = await self._language().prefill(asked, deadline, lease_s)
            answer = self._start(asked, _ignore)
            for delta in prefilled.deltas:
                answer.add(delta)
            kv = prefilled.kv_transfer_params
            return answer.response(usage=prefilled.usage, kv=kv, unfinished="length")

    async def _complete(self, asked: GenerateRequest, deadline: Deadline) -> GenerateResponse:
        """Generate to the end."""
        with counted(self._metrics, "generate", "decode"):
            async with self._language().run(asked, deadline) as run:
                answer = self._start(asked, run.stop)
                async for delta in run:
                    answer.add(delta)
            return answer.response()

    async def _events(
        self, asked: GenerateRequest, deadline: Deadline
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events. What fails before the first one is raised, later it is an event."""
        started = False
        try:
            if self._config.role in ("encode", "prefill"):
                whole = await self._answer(asked, deadline)
                answer = self._start(asked, _ignore)
                for choice in whole.choices:
                    finish, reason = choice.finish_reason, choice.stop_reason
                    part = ChoiceDelta(choice.token_ids, "", None, finish, reason)
                    started = True
                    yield sse(answer.chunk(choice.index, part))
            else:
                with counted(self._metrics, "generate", "decode"):
                    async with self._language().run(asked, deadline) as run:
                        answer = self._start(asked, run.stop)
                        pacer = Pacer(asked.sampling_params.stream_interval or 1)
                        async for delta in run:
                            said = answer.add(delta)
                            due = None if said is None else pacer.push(delta.index, said)
                            if due is not None:
                                started = True
                                yield sse(answer.chunk(delta.index, due))
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield sse(answer.usage_event())
        except TriptychError as error:
            if not started:
                raise
            yield sse(body(error, asked.request_id))
        yield SSE_DONE

    def _start(self, asked: GenerateRequest, stop: Callable[[int], None]) -> Answer:
        return Answer(asked, self._config.model_name, int(time.time()), self._tokenizer, stop)

    def _language(self) -> Generator:
        if self._generator is None:
            raise wrong_role("generate", self._config.role)
        return self._generator


def _encode_items(asked: GenerateRequest) -> list[EncodeItem]:
    """The distinct items of a request to encode."""
    items: dict[str, EncodeItem] = {}
    for ref in asked.features.items() if asked.features else ():
        if ref.kwargs is None and ref.handle is None:
            raise InvalidRequest(
                f"item {ref.mm_hash} has no kwargs_data",
                f"features.kwargs_data.{ref.modality}.{ref.index}",
                items=(ref.mm_hash,),
            )
        handle = ref.handle if ref.kwargs is None else None
        items.setdefault(
            ref.mm_hash,
            EncodeItem(
                ref.mm_hash, ref.modality, ref.placeholder.rows, handle=handle, text=ref.kwargs
            ),
        )
    return list(items.values())


def _ignore(_choice: int) -> None:
    """Nothing runs that could be stopped."""


async def _first(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
