"""Render and derender endpoints, passed on to a render replica as they came."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.streaming import WholeAnswer
from coordinator.calls import at_replica
from coordinator.clients.http import HttpPeer
from coordinator.front import Front
from coordinator.member import Member
from coordinator.state import Admitted
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
        visit = self._front.enter(request, "render")
        with visit.until_answered():
            body = await read_body(request)
            headers = {
                name: request.headers[name] for name in _PASSED_ON if name in request.headers
            }
            admitted = self._front.admit(request, visit, "")
            return WholeAnswer(self._answer(request.url.path, body, headers, admitted), visit)

    async def close(self) -> None:
        """Drop the connections."""
        for peer in self._peers.values():
            await peer.close()

    async def _answer(
        self, path: str, body: bytes, headers: dict[str, str], admitted: Admitted
    ) -> Response:
        config = self._front.config
        deadline = admitted.deadline
        for attempt in self._front.retries.attempts(
            "render", config.render.attempts, deadline, None, admitted.receipt
        ):
            async with (
                attempt,
                at_replica(
                    self._front.pool,
                    "render",
                    "render",
                    admitted.receipt,
                    deadline,
                    attempt=attempt,
                    suits=_has_http,
                    avoid=attempt.failed,
                ) as member,
            ):
                peer = self._peer(member.replica.http)
                limit = deadline.within(config.render.timeout_s)
                answer = await peer.post(path, body, limit, headers)
                return Response(answer.body, answer.status, media_type=answer.content_type)
        raise Unavailable("no render replica answered", stage="render")

    def _peer(self, url: str) -> HttpPeer:
        if url not in self._peers:
            self._peers[url] = HttpPeer(url)
        return self._peers[url]


def _has_http(member: Member) -> bool:
    return bool(member.replica.http)
