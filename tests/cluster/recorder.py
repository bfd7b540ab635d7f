"""A gRPC proxy that records what one replica is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import msgspec

from protocol.replica import Replica
from protocol.rpc import DESCRIBE
from serving.rpc_client import OPTIONS as CLIENT_OPTIONS
from serving.rpc_server import OPTIONS as SERVER_OPTIONS


class RecordingProxy:
    """Forwards every call byte for byte, and keeps the requests.

    The replica's description is the one message that is changed: it names the proxy's address, so
    that the coordinator's calls come this way.

    Args:
        target: `host:port` of the replica's gRPC server.
    """

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=CLIENT_OPTIONS)
        self._server = grpc.server(ThreadPoolExecutor(64), options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Everything(self._forward),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._lock = threading.Lock()
        self._requests: list[tuple[str, bytes]] = []
        self._server.start()

    def requests(self, method: str) -> list[bytes]:
        """Bodies of the requests of a method, by its full name."""
        with self._lock:
            return [body for name, body in self._requests if name == method]

    def close(self) -> None:
        """Stop; running calls are cancelled."""
        self._server.stop(0).wait()
        self._channel.close()

    def _forward(self, method: str, body: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            self._requests.append((method, body))
        call = self._channel.unary_stream(method, None, None)(
            body, timeout=context.time_remaining(), metadata=_kept(context.invocation_metadata())
        )
        context.add_callback(call.cancel)
        try:
            for reply in call:
                yield self._redescribed(reply) if method == DESCRIBE.name else reply
        except grpc.RpcError as error:
            if not context.is_active():
                return
            context.set_trailing_metadata(_kept(error.trailing_metadata()))
            context.abort(error.code(), error.details() or "")

    def _redescribed(self, reply: bytes) -> bytes:
        replica = msgspec.msgpack.decode(reply, type=Replica)
        return msgspec.msgpack.encode(msgspec.structs.replace(replica, grpc=self.address))


if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:
    _Handler = grpc.GenericRpcHandler  # its stubs alone are generic


class _Everything(_Handler):
    """Handles every method as one request and a stream of replies, which any call can be."""

    def __init__(self, forward: Callable[[str, bytes, Any], Iterator[bytes]]) -> None:
        self._forward = forward

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = details.method

        def call(body: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            return self._forward(method, body, context)

        return grpc.unary_stream_rpc_method_handler(call)


def _kept(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata without what gRPC adds itself."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if not key.startswith(":") and key not in ("user-agent", "te", "content-type")
    )
