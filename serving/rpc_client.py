"""Calls to a server of `protocol.rpc` methods, each under a deadline.

Leaving a call early (cancellation, a broken loop over a stream) cancels it at the peer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import msgspec

from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    TriptychError,
    Unauthorized,
    Unavailable,
    WireError,
    from_wire,
)
from protocol.rpc import ERROR_METADATA, Method
from serving.rpc_server import MAX_MESSAGE_BYTES

Req = TypeVar("Req")
Rep = TypeVar("Rep")

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
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
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._encode = msgspec.msgpack.Encoder().encode

    async def call(self, method: Method[Req, Rep], request: Req, deadline: Deadline) -> Rep:
        """One request, one reply.

        Raises:
            TriptychError: what the peer raised; Unavailable where it could not be reached or was
                lost; DeadlineExceeded.
        """
        rpc = self._channel.unary_unary(method.name, None, None)
        try:
            body = await rpc(
                self._encode(request), timeout=deadline.remaining(), metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from None
        return self._decode(method, body)

    async def stream(
        self, method: Method[Req, Rep], request: Req, deadline: Deadline
    ) -> AsyncIterator[Rep]:
        """One request, a stream of replies; raises as `call` does, also in mid-stream."""
        rpc = self._channel.unary_stream(method.name, None, None)
        call = rpc(self._encode(request), timeout=deadline.remaining(), metadata=self._metadata)
        try:
            async for body in call:
                yield self._decode(method, body)
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection; calls that still run are cancelled."""
        await self._channel.close(None)

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
