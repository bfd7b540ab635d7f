"""Calls to a server of `protocol.rpc` methods, each under a deadline.

Leaving a call early (cancellation, a broken loop over a stream) cancels it at the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, TypeVar, cast

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
    WireError,
    from_wire,
)
from protocol.rpc import ERROR_METADATA, Method
from serving import trace_context
from serving.rpc_server import MAX_ERROR_BYTES, MAX_MESSAGE_BYTES

Req = TypeVar("Req")
Rep = TypeVar("Rep")

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_ERROR_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_ERROR_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a pause: how long a connection may take to be made. A busy peer needs more than 100 ms.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class RpcChannel:
    """One connection to one peer.

    Args:
        address: `host:port`.
        token: the cluster token to present, "" for none.
    """

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._metadata: tuple[tuple[str, str], ...] = (
            (("authorization", f"Bearer {token}"),) if token else ()
        )
        self._encode = msgspec.msgpack.Encoder().encode

    async def call(self, method: Method[Req, Rep], request: Req, deadline: Deadline) -> Rep:
        """One request, one reply.

        Raises:
            TriptychError: what the peer raised; Unavailable where it could not be reached or was
                lost; DeadlineExceeded.
        """
        message = self._message(method, request)
        with self._translated():
            rpc = self._channel.unary_unary(method.name, None, None)
            body = await rpc(message, timeout=deadline.remaining(), metadata=self._with_trace())
        return self._decode(method, body)

    async def stream(
        self, method: Method[Req, Rep], request: Req, deadline: Deadline
    ) -> AsyncGenerator[Rep, None]:
        """One request, a stream of replies; raises as `call` does, also in mid-stream.

        Who may leave the stream early closes it (`contextlib.aclosing`), which cancels the call.
        """
        message = self._message(method, request)
        with self._translated():
            rpc = self._channel.unary_stream(method.name, None, None)
            call = rpc(message, timeout=deadline.remaining(), metadata=self._with_trace())
            try:
                async for body in call:
                    yield self._decode(method, body)
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close the connection; calls that still run are cancelled."""
        await self._channel.close(None)

    def _with_trace(self) -> tuple[tuple[str, str], ...]:
        traceparent = trace_context.current()
        if not traceparent:
            return self._metadata
        return (*self._metadata, (trace_context.HEADER, traceparent))

    def _message(self, method: Method[Any, Any], request: Any) -> bytes:
        try:
            return self._encode(request)
        except OverflowError:  # an open map of a client's request, kv_transfer_params for example
            raise InvalidRequest(
                f"{method.name}: integers must not be larger than 64 bit"
            ) from None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of gRPC as ours; a channel closed under a call is a lost peer."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from None
        except grpc.aio.UsageError:
            raise Unavailable(f"the connection to {self.address} is closed") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable(f"the connection to {self.address} was closed") from None

    def _decode(self, method: Method[Any, Rep], body: bytes) -> Rep:
        try:
            return msgspec.msgpack.decode(body, type=method.reply)
        except msgspec.DecodeError as error:
            raise InternalError(f"{self.address} answered {method.name} with garbage") from error

    def _translate(self, error: grpc.aio.AioRpcError) -> TriptychError:
        trailers: Mapping[str, str | bytes] = dict(cast("Any", error.trailing_metadata()) or ())
        trailer = trailers.get(ERROR_METADATA)
        if isinstance(trailer, bytes):
            try:
                return from_wire(msgspec.msgpack.decode(trailer, type=WireError))
            except msgspec.DecodeError:
                return InternalError(f"{self.address} answered with a malformed error")
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{self.address} did not answer in time")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return Unauthorized("the cluster token is missing or wrong")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unavailable(f"{self.address} is not reachable")
        return InternalError(f"{self.address} failed: {code.name}")
