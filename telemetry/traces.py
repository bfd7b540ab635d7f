"""OpenTelemetry spans, made when a request has ended from what it wrote down.

Optional: without the opentelemetry packages, or switched off, nothing is imported and nothing is
done. Spans join the trace of the client's `traceparent`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.errors import InvalidRequest

Exporter = Literal["off", "console", "otlp"]


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span.

    Attributes:
        name: for example `triptych.encode`.
        start_s, end_s: Unix seconds.
        attributes: numbers and words.
        error: kind of the error it ended with.
    """

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    error: str | None = None


class Tracer:
    """Hands spans to an exporter, in the background.

    Args:
        exporter: `off`, `console` (JSON on standard output) or `otlp` (over HTTP).
        endpoint: of the OTLP collector, "" for the exporter's default.
        service: `service.name` of the resource.

    Raises:
        InvalidRequest: the exporter's package is not installed.
    """

    def __init__(self, exporter: Exporter, endpoint: str = "", service: str = "triptych") -> None:
        self._provider: Any = None
        self._tracer: Any = None
        if exporter == "off":
            return
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            sink = _sink(exporter, endpoint)
        except ImportError as error:
            raise InvalidRequest(
                f"tracing with {exporter} needs the package {error.name}", "tracing"
            ) from None
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(sink))
        self._tracer = self._provider.get_tracer("triptych")

    def record(
        self, root: SpanRecord, children: Sequence[SpanRecord], traceparent: str = ""
    ) -> None:
        """Export a request's span and those of its stages; never blocks."""
        if self._tracer is None:
            return
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        span = self._start(root, parent)
        inside = trace.set_span_in_context(span, parent)
        for child in children:
            self._start(child, inside).end(_ns(child.end_s))
        span.end(_ns(root.end_s))

    def shutdown(self) -> None:
        """Send what is left. Blocks: call it in a thread."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = self._tracer = None

    def _start(self, record: SpanRecord, context: Any) -> Any:
        from opentelemetry.trace import StatusCode

        span = self._tracer.start_span(
            record.name,
            context=context,
            start_time=_ns(record.start_s),
            attributes=dict(record.attributes),
        )
        if record.error is not None:
            span.set_status(StatusCode.ERROR, record.error)
        return span


def _sink(exporter: Exporter, endpoint: str) -> Any:
    if exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stdout)  # its default is that of import time
    module = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    return module.OTLPSpanExporter(endpoint=endpoint or None)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
