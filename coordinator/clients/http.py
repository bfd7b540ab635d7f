"""One HTTP peer; the only place of this package that knows the HTTP client library."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass

import httpx2 as httpx
import msgspec

from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    TriptychError,
    Unavailable,
    Unprocessable,
)

_log = logging.getLogger(__name__)

_BY_STATUS: dict[int, type[TriptychError]] = {
    400: InvalidRequest,
    404: NotFound,
    413: PayloadTooLarge,
    422: Unprocessable,
    429: Overloaded,
    501: NotSupported,
    503: Unavailable,
    504: DeadlineExceeded,
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class HttpPeer:
    """Connections to one base URL.

    Args:
        base_url: without a path.
        api_key: presented as a bearer token, "" for none.
    """

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self.base_url = base_url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = self._connect()

    async def get_status(self, path: str, deadline: Deadline) -> int:
        """The status of a GET; raises as `post` does."""
        async with self._translated(deadline):
            return (await self._client.get(path)).status_code

    async def post(
        self, path: str, body: bytes, deadline: Deadline, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Any answer, errors included.

        Raises:
            Unavailable: not reachable, or lost on the way.
            DeadlineExceeded: no answer in time.
        """
        sent = {**self._headers, "content-type": "application/json", **(headers or {})}
        async with self._translated(deadline):
            answer = await self._client.post(path, content=body, headers=sent)
            kind = answer.headers.get("content-type", "")
            return HttpAnswer(answer.status_code, kind, answer.content)

    async def ask(self, path: str, body: bytes, deadline: Deadline) -> bytes:
        """The body of a 200.

        Raises:
            TriptychError: as `post`, and what another status means.
        """
        answer = await self.post(path, body, deadline)
        if answer.status != 200:
            raise self._meaning(answer)
        return answer.body

    async def events(
        self, path: str, body: bytes, deadline: Deadline
    ) -> AsyncGenerator[bytes, None]:
        """The data of server-sent events until `[DONE]`; raises as `ask`."""
        sent = {**self._headers, "content-type": "application/json"}
        with self._known_errors():
            async with self._client.stream(
                "POST", path, content=body, headers=sent, timeout=deadline.remaining()
            ) as answer:
                if answer.status_code != 200:
                    kind = answer.headers.get("content-type", "")
                    raise self._meaning(HttpAnswer(answer.status_code, kind, await answer.aread()))
                async for line in answer.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    yield data.encode()
        raise Unavailable(f"{self.base_url} ended its stream too early")

    async def reset(self) -> None:
        """Drop every connection; later calls make new ones."""
        old, self._client = self._client, self._connect()
        await old.aclose()

    async def close(self) -> None:
        """Drop every connection."""
        await self._client.aclose()

    def _connect(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        return httpx.AsyncClient(
            base_url=self.base_url, limits=limits, timeout=None, trust_env=False
        )

    @contextlib.asynccontextmanager
    async def _translated(self, deadline: Deadline) -> AsyncGenerator[None, None]:
        try:
            with self._known_errors():
                async with asyncio.timeout(deadline.remaining()):
                    yield
        except TimeoutError:
            raise DeadlineExceeded(f"{self.base_url} did not answer in time") from None

    @contextlib.contextmanager
    def _known_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise DeadlineExceeded(f"{self.base_url} did not answer in time") from None
        except (httpx.HTTPError, httpx.StreamError, RuntimeError) as error:
            # RuntimeError: the client was closed by `reset` while it connected.
            raise Unavailable(f"{self.base_url} is not reachable") from error

    def _meaning(self, answer: HttpAnswer) -> TriptychError:
        """The error that an answer stands for; what a 5xx says stays in our log."""
        message, param = _said(answer.body)
        cls = _BY_STATUS.get(answer.status)
        if answer.status in (401, 403):
            _log.error("%s refused us: %d %s", self.base_url, answer.status, message)
            return Unavailable(f"{self.base_url} refused the coordinator")
        if cls is None:
            _log.error("%s failed: %d %s", self.base_url, answer.status, message)
            return InternalError(f"{self.base_url} failed")
        if answer.status >= 500:
            return cls(f"{self.base_url} answered {answer.status}")
        return cls(message or f"{self.base_url} refused the request", param)


class _Detail(msgspec.Struct):
    message: str = ""
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Detail | str = ""


def _said(body: bytes) -> tuple[str, str | None]:
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return "", None
    return (error, None) if isinstance(error, str) else (error.message, error.param)
