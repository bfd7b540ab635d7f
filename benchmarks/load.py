"""A closed loop of clients that stream chat answers and time them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sent, and what a right answer says."""

    body: bytes
    expected: str


@dataclass(frozen=True, slots=True)
class Timing:
    """One request. Times are seconds.

    Attributes:
        first_token: from sending to the first words.
        per_token: mean time of the tokens after the first, None where there was one only.
        total: from sending to the last byte.
        tokens: generated, as `usage` counts them.
        right: whether the answer is the expected one.
        error: what went wrong, or "".
    """

    first_token: float
    per_token: float | None
    total: float
    tokens: int
    right: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What a loop of clients saw in `seconds`."""

    seconds: float
    timings: list[Timing]

    @property
    def errors(self) -> list[str]:
        """What went wrong, once per request."""
        return [timing.error for timing in self.timings if timing.error]

    @property
    def requests_per_s(self) -> float:
        """Requests that were answered, per second."""
        return (len(self.timings) - len(self.errors)) / self.seconds


def streaming(body: dict[str, Any], expected: str) -> Prepared:
    """A chat body as a streaming request whose last event has the usage."""
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return Prepared(msgspec.json.encode(whole), expected)


async def run(url: str, requests: Sequence[Prepared], clients: int) -> Load:
    """Send all requests, `clients` at a time, each client one after the other.

    Args:
        url: of `/v1/chat/completions`.
        requests: taken in order by whichever client is free.
        clients: how many.
    """
    waiting = iter(requests)
    timings: list[Timing] = []
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, limits=limits) as http:

        async def client() -> None:
            timings.extend([await _ask(http, url, request) for request in waiting])

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
        seconds = time.perf_counter() - began
    return Load(seconds, timings)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_events = msgspec.json.Decoder(_Event)


async def _ask(http: httpx.AsyncClient, url: str, request: Prepared) -> Timing:
    began = time.perf_counter()
    first = last = 0.0
    words: list[str] = []
    tokens = 0
    error = ""
    headers = {"content-type": "application/json"}
    try:
        async with http.stream("POST", url, content=request.body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                error = f"{response.status_code}: {response.text[:200]}"
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = _events.decode(line[6:])
                if event.error is not None:
                    error = str(event.error.get("message"))
                if event.usage is not None:
                    tokens = event.usage.completion_tokens
                if event.choices and event.choices[0].delta.content:
                    last = time.perf_counter()
                    first = first or last
                    words.append(event.choices[0].delta.content)
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    ended = time.perf_counter()
    if not error and not tokens:
        error = "the stream ended early"
    return Timing(
        (first or ended) - began,
        (last - first) / (tokens - 1) if last > first else None,  # one-word answers have none
        ended - began,
        tokens,
        "".join(words) == request.expected,
        error,
    )
