"""What every endpoint needs: admission, the stages, the derenderer, the served names."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request

from coordinator.config import CoordinatorConfig
from coordinator.pipeline import Pipeline
from coordinator.replicas import ReplicaPool
from coordinator.retry import Retries
from coordinator.stages.render import RenderStage
from coordinator.state import Admitted
from protocol.deadline import Deadline
from protocol.derender import Derenderer
from protocol.errors import InvalidRequest, NotFound
from protocol.ids import is_valid_id, new_id
from protocol.rpc import RenderEndpoint


@dataclass(frozen=True, slots=True)
class Front:
    """The parts that endpoints share; made once by the server."""

    config: CoordinatorConfig
    pool: ReplicaPool
    render: RenderStage
    pipeline: Pipeline
    derenderer: Derenderer
    retries: Retries

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

    def admit(
        self,
        request: Request,
        prefix: str,
        wanted_id: str | None = None,
        endpoint: RenderEndpoint | None = None,
        body: bytes | None = None,
    ) -> Admitted:
        """Let a request in: give it an id and a deadline.

        Raises:
            InvalidRequest: the client's id is malformed.
        """
        given = request.headers.get("x-request-id") or wanted_id
        if given is not None and not is_valid_id(given):
            raise InvalidRequest(
                "request_id must be printable ASCII, at most 256 characters", "request_id"
            )
        request_id = prefix + (given or new_id())
        return Admitted(request_id, Deadline.after(self.config.request_timeout_s), endpoint, body)


def now() -> int:
    """Unix seconds, for `created`."""
    return int(time.time())
