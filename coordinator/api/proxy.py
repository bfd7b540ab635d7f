"""Render and derender endpoints, passed on to a render replica as they came."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.streaming import WholeAnswer
from coordinator.clients.http import HttpPeer
from coordinator.front import Front
from protocol.deadline import Deadline
from protocol.errors import Unavailable
from serving.http import read_body, require_scale_out

PATHS = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/v1/messages/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
)

_PASSED_ON = ("authorization", "x-request-id", "traceparent")


class RenderProxy:
    """Any render replica will do: both directions are stateless."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._peers: dict[str, HttpPeer] = {}

    async def __call__(self, request: Request) -> Response:
        """The answer, not begun yet."""
        require_scale_out(self._front.config.enable_scale_out)
        body = await read_body(request)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        return WholeAnswer(self._answer(request.url.path, body, headers))

    async def close(self) -> None:
        """Drop the connections."""
        for peer in self._peers.values():
            await peer.close()

    async def _answer(self, path: str, body: bytes, headers: dict[str, str]) -> Response:
        config = self._front.config
        deadline = Deadline.after(config.request_timeout_s)
        pool = self._front.pool
        avoid: set[str] = set()
        for attempt in self._front.retries.attempts(
            "render", config.render.attempts, deadline, avoid
        ):
            async with (
                attempt,
                pool.lease(
                    "render", deadline, suits=lambda m: bool(m.replica.http), avoid=avoid
                ) as member,
            ):
                attempt.at(member)
                peer = self._peer(member.replica.http)
                limit = deadline.within(config.render.timeout_s)
                answer = await peer.post(path, body, limit, headers)
                return Response(answer.body, answer.status, media_type=answer.content_type)
        raise Unavailable("no render replica answered", stage="render")

    def _peer(self, url: str) -> HttpPeer:
        if url not in self._peers:
            self._peers[url] = HttpPeer(url)
        return self._peers[url]
