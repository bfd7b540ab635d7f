"""The HTTP edge that all our servers share: bodies in, errors out, keys, limits, SSE.

Applications are Starlette; `edge` wraps one so that every path is guarded and every failure has
the contract's error body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import (
    Forbidden,
    InternalError,
    PayloadTooLarge,
    SchemaViolation,
    TriptychError,
    Unauthorized,
    body,
)
from serving.auth import bearer, matches

T = TypeVar("T")

OPEN_PATHS = frozenset({"/health", "/live", "/ping", "/version"})
"""Never guarded by the API key; /metrics joins them unless protected."""

DEFAULT_MAX_BODY_BYTES = 40 * 2**20

_log = logging.getLogger(__name__)
_json = msgspec.json.Encoder()


def json_bytes(value: Any) -> bytes:
    """A msgspec struct, or plain data, as JSON."""
    return _json.encode(value)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A msgspec struct, or plain data, as JSON."""
    return Response(json_bytes(value), status, headers, media_type="application/json")


class JsonParts(Response):
    """A JSON document in parts, which are written one after the other and never joined."""

    media_type = "application/json"

    def __init__(self, parts: Sequence[bytes]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, parts)))})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_response(error: TriptychError, request_id: str | None = None) -> Response:
    """The one place where an error becomes an HTTP answer."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return json_response(body(error, request_id), error.status, headers)


def sse(value: Any) -> bytes:
    """One server-sent event with compact JSON."""
    return b"data: " + _json.encode(value) + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


def decode_json(data: bytes, schema: type[T]) -> T:
    """A typed value from a JSON body.

    Raises:
        SchemaViolation: `param` is the dotted path of the field, e.g. `body.token_ids`.
    """
    try:
        return msgspec.json.decode(data, type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise schema_violation(error) from None


def schema_violation(error: Exception) -> SchemaViolation:
    """A decoding failure in the contract's words (wire-protocol §1.6)."""
    if not isinstance(error, msgspec.ValidationError):
        return SchemaViolation(
            "1 validation error:\n"
            f"  {{'type': 'json_invalid', 'loc': ('body',), 'msg': {str(error)!r}}}",
            "body",
        )
    text, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`").replace("[...]", "").replace("[", ".").replace("]", "")
    loc = tuple(part for part in f"body{path}".split(".") if part)
    own = isinstance(error.__cause__, ValueError)
    message = f"Value error, {text}" if own else text
    return SchemaViolation(
        "1 validation error:\n"
        f"  {{'type': {'value_error' if own else 'schema'!r}, 'loc': {loc!r}, 'msg': {message!r}}}",
        ".".join(loc),
    )


async def read_body(request: Request) -> bytes:
    """The raw body of a JSON request.

    Raises:
        SchemaViolation: the content type is not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise SchemaViolation("Unsupported Media Type: Only 'application/json' is allowed")
    return await request.body()


async def read_json(request: Request, schema: type[T]) -> T:
    """The body as a typed value; raises as `read_body` and `decode_json` do."""
    return decode_json(await read_body(request), schema)


def require_scale_out(enabled: bool) -> None:
    """Refuse the scale-out endpoints where they are off.

    Raises:
        Forbidden: names the flag.
    """
    if not enabled:
        raise Forbidden(
            "Scale-out endpoints are disabled. Restart triptych with --enable-scale-out to "
            "enable them."
        )


def edge(
    routes: list[BaseRoute],
    *,
    api_keys: tuple[str, ...] = (),
    protect_metrics: bool = False,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    lifespan: Callable[[Starlette], Any] | None = None,
) -> ASGIApp:
    """An application whose paths are guarded and whose errors have the contract's form.

    Args:
        routes: Starlette routes.
        api_keys: accepted keys; none means that no key is asked for.
        protect_metrics: ask for a key on /metrics too.
        max_body_bytes: larger bodies are answered with 413 before they are read.
        lifespan: Starlette's.
    """

    async def on_error(_request: Request, error: Exception) -> Response:
        if isinstance(error, TriptychError):
            return error_response(error)
        if isinstance(error, HTTPException):
            response = json_response({"detail": error.detail}, error.status_code)
            response.headers.update(error.headers or {})
            return response
        if not isinstance(error, ClientDisconnect):  # nobody is there to be answered
            _log.exception("unhandled error", exc_info=error)
        return error_response(InternalError("Internal server error"))

    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers=dict.fromkeys((TriptychError, HTTPException, Exception), on_error),
        lifespan=lifespan,
    )
    app = _BodyLimit(app, max_body_bytes)
    if api_keys:
        open_paths = OPEN_PATHS if protect_metrics else OPEN_PATHS | {"/metrics"}
        app = _ApiKey(app, api_keys, open_paths)
    return app


class _ApiKey:
    """Asks for a key before routing, so that unknown paths are 401 too."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], open_paths: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            request = Request(scope)
            allowed = request.method == "OPTIONS" or matches(
                bearer(request.headers.get("authorization")), self._keys
            )
            if not allowed:
                await error_response(Unauthorized("Unauthorized"))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _BodyLimit:
    """Answers 413 by the declared length, or as soon as a chunked body grows past the limit."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = PayloadTooLarge(f"the request body is larger than {self._limit} bytes", "body")
        declared = Request(scope).headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._limit:
            await error_response(too_large)(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._limit:
                    raise too_large
            return message

        try:
            await self._app(scope, limited, send)
        except ClientDisconnect:
            return
