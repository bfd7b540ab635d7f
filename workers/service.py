"""The gRPC calls of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from ec_connector.connector import EcConnector
from ec_connector.owners import KeyOwners
from protocol.deadline import Deadline
from protocol.errors import NotSupported, Stage, TriptychError
from protocol.generate import GenerateRequest
from protocol.replica import Replica, ReplicaStatus
from protocol.rpc import (
    DESCRIBE,
    ENCODE,
    GENERATE,
    HOLDINGS,
    KV_RELEASE,
    PREFILL,
    RESERVE,
    STATUS,
    Empty,
    EncodeCall,
    Encoded,
    Holdings,
    Prefilled,
    ReleaseCall,
    ReserveCall,
    Reserved,
    TokenDelta,
)
from protocol.transfer import parse_kv_handoff
from serving import trace_context
from serving.rpc_server import RpcServer
from telemetry.traces import SpanRecord, Tracer
from telemetry.workers import WorkerMetrics
from workers.generation import Generator
from workers.publisher import Publisher
from workers.status import StatusBoard


class WorkerService:
    """Handlers of the worker's methods.

    Args:
        replica: says who we are, once everything listens.
        status: streams our load.
        publisher: of the encode role, else None.
        generator: of the roles with a language model, else None.
        connector: whose offers can be released.
        lease_s: how long KV blocks wait to be fetched.
        metrics: of this worker.
        tracer: takes a span per call of a request that its client traces.
    """

    def __init__(
        self,
        replica: Callable[[], Replica],
        status: StatusBoard,
        publisher: Publisher | None,
        generator: Generator | None,
        connector: EcConnector,
        lease_s: float,
        metrics: WorkerMetrics,
        tracer: Tracer,
    ) -> None:
        self._replica = replica
        self._status = status
        self._publisher = publisher
        self._generator = generator
        self._connector = connector
        self._lease_s = lease_s
        self._metrics = metrics
        self._tracer = tracer
        self._offers = KeyOwners()

    def register(self, server: RpcServer) -> None:
        """Add every handler to a server."""
        server.add_unary(DESCRIBE, self.describe)
        server.add_stream(STATUS, self.status)
        server.add_unary(ENCODE, self.encode)
        server.add_unary(RESERVE, self.reserve)
        server.add_stream(HOLDINGS, self.holdings)
        server.add_unary(PREFILL, self.prefill)
        server.add_stream(GENERATE, self.generate)
        server.add_unary(KV_RELEASE, self.kv_release)

    async def describe(self, _request: Empty, _deadline: Deadline) -> Replica:
        """Who this replica is."""
        return self._replica()

    async def status(self, _request: Empty, _deadline: Deadline) -> AsyncIterator[ReplicaStatus]:
        """Its load, while the caller listens."""
        async for status in self._status.watch():
            yield status

    async def encode(self, call: EncodeCall, deadline: Deadline) -> Encoded:
        """Encode items and publish their embeddings; raises as `Publisher.encode` does."""
        with self._call("encode", "encode"):
            if self._publisher is None:
                raise wrong_role("encode", self._replica().role)
            return await self._publisher.encode(call, deadline)

    async def reserve(self, call: ReserveCall, _deadline: Deadline) -> Reserved:
        """Say who encodes items; raises as `Publisher.reserve` does."""
        with self._call("reserve", "encode"):
            if self._publisher is None:
                raise wrong_role("reserve", self._replica().role)
            return self._publisher.reserve(call)

    async def holdings(self, _request: Empty, _deadline: Deadline) -> AsyncIterator[Holdings]:
        """What the store holds, while the caller listens."""
        if self._publisher is None:
            raise wrong_role("holdings", self._replica().role)
        async for notice in self._publisher.holdings.watch():
            yield notice

    async def prefill(self, request: GenerateRequest, deadline: Deadline) -> Prefilled:
        """Prefill and offer the KV blocks; raises as `Generator.prefill` does."""
        with self._call("prefill", "prefill"):
            if self._generator is None:
                raise wrong_role("prefill", self._replica().role)
            with self._offers.running(request.request_id) as call:
                prefilled = await self._generator.prefill(request, deadline, self._lease_s)
                params = prefilled.kv_transfer_params
                handoff = parse_kv_handoff(params or {})
                keys = [handoff.source.key] if handoff is not None else []
                self._connector.retire(self._offers.add(request.request_id, keys, call))
            return prefilled

    async def generate(
        self, request: GenerateRequest, deadline: Deadline
    ) -> AsyncIterator[TokenDelta]:
        """Generate; raises as `Generator.run` does."""
        with self._call("generate", "decode"):
            if self._generator is None:
                raise wrong_role("generate", self._replica().role)
            async with self._generator.run(request, deadline) as run:
                async for delta in run:
                    yield delta

    async def kv_release(self, call: ReleaseCall, _deadline: Deadline) -> Empty:
        """Free the blocks of prefilled requests that nobody will fetch."""
        self._connector.retire([*call.keys, *self._offers.take(call.request_ids)])
        return Empty()

    @contextmanager
    def _call(self, call: str, stage: Stage) -> Iterator[None]:
        """Count a call as `counted` does, and record its span."""
        began, failed = time.time(), None
        try:
            with counted(self._metrics, call, stage):
                yield
        except BaseException as error:
            failed = error.kind if isinstance(error, TriptychError) else "aborted"
            raise
        finally:
            traceparent = trace_context.current()
            if traceparent:
                attributes = {"triptych.replica": self._replica().id}
                name = f"triptych.worker.{call}"
                span = SpanRecord(name, began, time.time(), attributes, failed)
                self._tracer.record(span, (), traceparent)


@contextmanager
def counted(metrics: WorkerMetrics, call: str, stage: Stage) -> Iterator[None]:
    """Count how a call ends, and say in an error which stage it happened in."""
    outcome = "ok"
    try:
        yield
    except TriptychError as error:
        outcome = error.kind
        error.stage = error.stage or stage
        raise
    except (asyncio.CancelledError, GeneratorExit):
        outcome = "aborted"
        raise
    except BaseException:
        outcome = "internal"
        raise
    finally:
        metrics.requests.labels(call, outcome).inc()


def wrong_role(call: str, role: str) -> NotSupported:
    """The answer to a call that a worker of this role does not serve."""
    return NotSupported(f"a worker of role {role} does not serve {call}")
