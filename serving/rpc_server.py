"""A gRPC server of `protocol.rpc` methods.

A handler is `async (request, deadline) -> reply`, or an async generator for a stream. It is
cancelled when the caller goes away. A TriptychError that it raises reaches the caller as the same
error; anything else as InternalError, with the cause in our log only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
import msgspec

from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    TriptychError,
    Unauthorized,
    Unavailable,
    to_wire,
)
from protocol.rpc import ERROR_METADATA, Method
from serving import trace_context
from serving.auth import bearer, matches

Req = TypeVar("Req")
Rep = TypeVar("Rep")
Unary: TypeAlias = Callable[[Req, Deadline], Awaitable[Rep]]
Stream: TypeAlias = Callable[[Req, Deadline], AsyncIterator[Rep]]

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_ERROR_BYTES = 256 * 2**10
"""Of the metadata that carries an error; it may name hundreds of items."""

DEFAULT_DEADLINE_S = 600.0
"""For a caller that sets no timeout."""

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", MAX_ERROR_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_ERROR_BYTES),
)

_log = logging.getLogger(__name__)


class RpcServer:
    """Serves methods on one address.

    Args:
        host, port: where to listen; port 0 picks a free one.
        token: the cluster token that callers must present, "" for none.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host = host
        self._port = port
        self._tokens = (token,) if token else ()
        self._handlers: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        self._server: grpc.aio.Server | None = None

    def add_unary(self, method: Method[Req, Rep], handler: Unary[Req, Rep]) -> None:
        """Serve a method that answers once."""
        decode, encode = _codec(method)

        async def call(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                self._enter(context)
                return encode(await handler(decode(body), _deadline(context)))
            except Exception as error:
                await _abort(context, method, error)
                raise

        self._register(method, grpc.unary_unary_rpc_method_handler(call))

    def add_stream(self, method: Method[Req, Rep], handler: Stream[Req, Rep]) -> None:
        """Serve a method that answers with a stream."""
        decode, encode = _codec(method)

        async def call(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            # write() instead of yield: a cancellation while a message is being sent would leave
            # a generator suspended, and the handler's clean-up to the garbage collector.
            try:
                self._enter(context)
                async with _closing(handler(decode(body), _deadline(context))) as replies:
                    async for reply in replies:
                        await context.write(encode(reply))
            except Exception as error:
                await _abort(context, method, error)
                raise

        self._register(method, grpc.unary_stream_rpc_method_handler(call))

    async def start(self) -> int:
        """Listen; returns the port.

        Raises:
            Unavailable: the address is taken.
        """
        server = grpc.aio.server(options=OPTIONS)
        for service, methods in self._handlers.items():
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, methods),)
            )
        try:
            port = server.add_insecure_port(f"{self._host}:{self._port}")
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {self._host}:{self._port}: {error}") from None
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait up to `grace_s` for running ones, then cancel them."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def _register(self, method: Method[Any, Any], handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        _, service, name = method.name.split("/")
        self._handlers.setdefault(service, {})[name] = handler

    def _enter(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Check the caller's token; what it traces is traced here."""
        metadata = dict(context.invocation_metadata() or ())
        trace_context.enter(metadata.get(trace_context.HEADER))
        if not self._tokens:
            return
        header = metadata.get("authorization")
        if not matches(bearer(header if isinstance(header, str) else None), self._tokens):
            raise Unauthorized("the cluster token is missing or wrong")


@contextlib.asynccontextmanager
async def _closing(replies: AsyncIterator[Rep]) -> AsyncIterator[AsyncIterator[Rep]]:
    """Ends a generator where it is left, so that what it took is given back at once."""
    try:
        yield replies
    finally:
        if isinstance(replies, AsyncGenerator):
            await replies.aclose()


def _codec(method: Method[Req, Rep]) -> tuple[Callable[[bytes], Req], Callable[[Rep], bytes]]:
    decoder = msgspec.msgpack.Decoder(method.request)
    encoder = msgspec.msgpack.Encoder()

    def decode(body: bytes) -> Req:
        try:
            return decoder.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"malformed {method.name}: {error}") from None

    return decode, encoder.encode


def _deadline(context: grpc.aio.ServicerContext[Any, Any]) -> Deadline:
    left: float | None = context.time_remaining()  # None where the caller set no timeout
    return Deadline.after(DEFAULT_DEADLINE_S if left is None else min(left, DEFAULT_DEADLINE_S))


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], method: Method[Any, Any], error: Exception
) -> None:
    if isinstance(error, OverflowError):  # an open map of the request came back in the reply
        error = InvalidRequest(f"{method.name}: integers must not be larger than 64 bit")
    if not isinstance(error, TriptychError):
        _log.exception("%s failed", method.name, exc_info=error)
        error = InternalError("internal error")
    wire = msgspec.msgpack.encode(to_wire(error))
    await context.abort(_status(error), error.message[:512], ((ERROR_METADATA, wire),))


def _status(error: TriptychError) -> grpc.StatusCode:
    if isinstance(error, Unauthorized):
        return grpc.StatusCode.UNAUTHENTICATED
    if isinstance(error, DeadlineExceeded):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    if error.retryable:
        return grpc.StatusCode.UNAVAILABLE
    if error.status < 500:
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.INTERNAL
