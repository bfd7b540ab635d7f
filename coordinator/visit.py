"""One request at the front door: its ticket, its receipt, and what is said when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect

from coordinator.admission import Ticket
from coordinator.receipt import Receipt
from protocol.errors import TriptychError
from telemetry.coordinator import CoordinatorMetrics
from telemetry.logs import logger
from telemetry.traces import SpanRecord, Tracer

_log = logger(__name__)


class Visit:
    """From admission to the last byte; `end` is called exactly once counts.

    Args:
        ticket: what it counts for.
        receipt: what happened.
        metrics: of the coordinator.
        tracer: takes the receipt as spans.
        show_trace: whether the client gets X-Triptych-Trace.
    """

    def __init__(
        self,
        ticket: Ticket,
        receipt: Receipt,
        metrics: CoordinatorMetrics,
        tracer: Tracer,
        *,
        show_trace: bool,
    ) -> None:
        self.ticket = ticket
        self.receipt = receipt
        self._metrics = metrics
        self._tracer = tracer
        self._show_trace = show_trace
        self._ended = False
        metrics.running.inc()

    @contextmanager
    def until_answered(self) -> Iterator[None]:
        """Ends the visit if the block fails; otherwise the answer will."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise

    def headers(self) -> dict[str, str]:
        """Response headers, known when the first token is."""
        shown = {"X-Request-Id": self.receipt.request_id}
        if self._show_trace:
            shown["X-Triptych-Trace"] = self.receipt.header()
        return shown

    def end(self, error: BaseException | None) -> None:
        """The request has left, with or without an error."""
        if self._ended:
            return
        self._ended = True
        self.ticket.close()
        outcome = _outcome(error)
        self._metrics.finished(self.receipt.endpoint, outcome, self.receipt.summary())
        if self.receipt.calls or error is None:
            _log.info("request", outcome=outcome, **self.receipt.summary())
        self._record(outcome)

    def _record(self, outcome: str) -> None:
        receipt = self.receipt
        begun = receipt.wall_at
        failed = None if outcome in ("ok", "disconnected") else outcome
        root = SpanRecord(
            f"triptych.{receipt.endpoint}",
            begun,
            begun + receipt.elapsed_s,
            {"triptych.request_id": receipt.request_id, "triptych.topology": receipt.topology},
            failed,
        )
        children = [
            SpanRecord(
                f"triptych.{call.stage}",
                begun + call.at,
                begun + call.at + call.wait_s + call.work_s,
                {
                    "triptych.replica": call.replica,
                    "triptych.wait_s": call.wait_s,
                    **({"triptych.mm_hash": call.item} if call.item else {}),
                },
                call.error,
            )
            for call in receipt.calls
        ]
        self._tracer.record(root, children, receipt.traceparent)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, TriptychError):
        return error.kind
    if isinstance(error, ClientDisconnect | asyncio.CancelledError):
        return "disconnected"
    return "internal"
