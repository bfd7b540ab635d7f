"""`/health`, `/live`, `/ping`, `/version`, `/metrics`, `/v1/models`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from coordinator.directory import Directory
from coordinator.front import Front, now
from coordinator.topology import missing
from protocol.openai import ModelCard, ModelList
from serving.http import json_response
from telemetry.metrics import exposition


def _version() -> str:
    try:
        return version("triptych")
    except PackageNotFoundError:
        return "0"


class StatusEndpoints:
    """What a probe or an operator asks."""

    def __init__(self, front: Front, registry: CollectorRegistry, directory: Directory) -> None:
        self._directory = directory
        self._front = front
        self._registry = registry
        self._started = now()

    async def health(self, _request: Request) -> Response:
        """200 when every stage has a ready replica, else 503 with the missing stages."""
        absent = self.absent()
        if not absent:
            return json_response({"status": "ready"})
        body = {"status": "unavailable", "missing": absent}
        return json_response(body, 503, {"Retry-After": "2"})

    def absent(self) -> list[str]:
        """Stages without a ready replica."""
        pool = self._front.pool
        rendering = any(m.ready for m in pool.members("render"))
        return [*(() if rendering else ("render",)), *missing(pool)]

    async def live(self, _request: Request) -> Response:
        """200 while the process answers."""
        return json_response({"status": "live"})

    async def version(self, _request: Request) -> Response:
        """The release."""
        return json_response({"version": _version()})

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        metrics, admission = self._front.metrics, self._front.admission
        metrics.ready(m.role for m in self._front.pool.members() if m.ready)
        metrics.in_flight.labels("requests").set(admission.requests)
        metrics.in_flight.labels("body_bytes").set(admission.body_bytes)
        metrics.in_flight.labels("image_tokens").set(admission.image_tokens)
        metrics.in_flight.labels("kv_tokens").set(admission.kv_tokens)
        metrics.directory_entries.set(len(self._directory))
        text, kind = exposition(self._registry)
        return Response(text, media_type=kind)

    async def models(self, _request: Request) -> Response:
        """The served names."""
        lengths = [
            member.replica.max_model_len
            for member in self._front.pool.members()
            if member.replica.max_model_len
        ]
        return json_response(
            ModelList(
                [
                    ModelCard(
                        id=name,
                        created=self._started,
                        max_model_len=min(lengths, default=0),
                        root=name,
                    )
                    for name in self._front.names()
                ]
            )
        )
