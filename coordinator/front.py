"""What every endpoint needs: admission, the stages, the derenderer, the served names."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request

from coordinator.admission import Admission
from coordinator.config import CoordinatorConfig
from coordinator.pipeline import Pipeline
from coordinator.receipt import Receipt
from coordinator.replicas import ReplicaPool
from coordinator.retry import Retries
from coordinator.stages.render import RenderStage
from coordinator.state import Admitted, RenderedPrompt
from coordinator.visit import Visit
from protocol.deadline import Deadline
from protocol.derender import Derenderer
from protocol.errors import InvalidRequest, NotFound
from protocol.ids import is_valid_id, new_id
from protocol.rpc import RenderEndpoint
from serving import trace_context
from telemetry.coordinator import CoordinatorMetrics
from telemetry.traces import Tracer

_ID_KEPT = 200
"""Characters of a client's id that internal ones begin with."""


@dataclass(frozen=True, slots=True)
class Front:
    """The parts that endpoints share; made once by the server."""

    config: CoordinatorConfig
    pool: ReplicaPool
    render: RenderStage
    pipeline: Pipeline
    derenderer: Derenderer
    retries: Retries
    admission: Admission
    metrics: CoordinatorMetrics
    tracer: Tracer

    def names(self) -> list[str]:
        """Model names that are served."""
        if self.config.served_model_name:
            return [self.config.served_model_name]
        return sorted({m.replica.model for m in self.pool.members() if m.replica.model})

    def check_model(self, name: str | None) -> str:
        """The served name for a request's.

        Raises:
            NotFound: no such model.
        """
        names = self.names()
        if name and names and name not in names:
            raise NotFound(
                f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}.", "model"
            )
        return name or (names[0] if names else "")

    def check_choices(self, n: int | None, prompts: int = 1) -> None:
        """Refuse a request for more answers than one may have.

        Raises:
            InvalidRequest: names `n`.
        """
        limit = self.config.max_choices
        if (n or 1) * prompts > limit:
            raise InvalidRequest(f"n times the number of prompts must be at most {limit}", "n")

    def enter(self, request: Request, endpoint: str) -> Visit:
        """Let a request in, before its body is read.

        Raises:
            Overloaded: there are enough.
        """
        declared = request.headers.get("content-length", "")
        ticket = self.admission.enter(int(declared) if declared.isdigit() else 0)
        traceparent = trace_context.enter(request.headers.get(trace_context.HEADER))
        receipt = Receipt(endpoint, traceparent=traceparent)
        receipt.on_first_token = ticket.first_token
        self.retries.budget.earn()
        return Visit(
            ticket, receipt, self.metrics, self.tracer, show_trace=self.config.trace_header
        )

    def admit(
        self,
        request: Request,
        visit: Visit,
        prefix: str,
        wanted_id: str | None = None,
        endpoint: RenderEndpoint | None = None,
        body: bytes | None = None,
    ) -> Admitted:
        """Give a request its id and its deadline.

        Raises:
            InvalidRequest: the client's id is malformed.
        """
        given = request.headers.get("x-request-id") or wanted_id
        if given is not None and not is_valid_id(given):
            raise InvalidRequest(
                "request_id must be printable ASCII, at most 256 characters", "request_id"
            )
        request_id = visit.receipt.request_id = prefix + (given or new_id())
        internal_id = request_id if given is None else f"{request_id[:_ID_KEPT]}-{new_id()}"
        deadline = Deadline.after(self.config.request_timeout_s)
        return Admitted(request_id, internal_id, deadline, visit.receipt, endpoint, body)

    def rendered(self, visit: Visit, prompts: list[RenderedPrompt]) -> None:
        """Count what the prompts of a body really are."""
        receipt = visit.receipt
        receipt.prompt_tokens = sum(len(prompt.request.token_ids) for prompt in prompts)
        receipt.image_tokens = sum(prompt.image_tokens for prompt in prompts)
        images = sum(len(prompt.media) for prompt in prompts)
        wanted = sum(
            (prompt.request.sampling_params.max_tokens or 0) * prompt.request.sampling_params.n
            for prompt in prompts
        )
        visit.ticket.correct(receipt.image_tokens, images, receipt.prompt_tokens + wanted)


def now() -> int:
    """Unix seconds, for `created`."""
    return int(time.time())
