"""The load generator against a small server that answers as a coordinator does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.load import Load, run, streaming
from protocol.errors import Overloaded
from serving.http import SSE_DONE, edge, sse
from serving.http_server import HttpServer

_TOKEN_S = 0.02


class Server:
    """Answers three words, and knows how many asked at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        if body.get("user") == "refused":
            raise Overloaded("full")

        async def events() -> AsyncIterator[bytes]:
            self.now += 1
            self.most = max(self.most, self.now)
            for word in ("a", " red", " circle"):
                await asyncio.sleep(_TOKEN_S)
                yield sse({"choices": [{"index": 0, "delta": {"content": word}}]})
            yield sse({"choices": [], "usage": {"completion_tokens": 3}})
            yield SSE_DONE
            self.now -= 1

        return StreamingResponse(events(), media_type="text/event-stream")


async def load(count: int, clients: int, user: str = "") -> tuple[Load, Server]:
    served = Server()
    server = HttpServer(edge([Route("/", served.chat, methods=["POST"])]), "127.0.0.1", 0)
    port = await server.start()
    body = {"messages": [], "user": user}
    requests = [streaming(body, "a red circle") for _ in range(count)]
    done = await run(f"http://127.0.0.1:{port}/", requests, clients)
    await server.stop()
    return done, served


async def test_all_requests_are_sent_that_many_at_a_time() -> None:
    done, served = await load(9, 3)
    assert len(done.timings) == 9
    assert served.most == 3
    assert done.errors == []


async def test_times_are_of_the_words() -> None:
    done, _ = await load(1, 1)
    (timing,) = done.timings
    assert timing.right
    assert timing.tokens == 3
    assert _TOKEN_S <= timing.first_token < timing.total
    assert timing.per_token is not None
    assert timing.per_token >= _TOKEN_S * 0.9


async def test_a_refusal_is_an_error_and_no_answer() -> None:
    done, _ = await load(2, 2, "refused")
    assert [error[:4] for error in done.errors] == ["429:", "429:"]
    assert done.requests_per_s == 0


async def test_a_server_that_is_not_there_is_an_error() -> None:
    done = await run("http://127.0.0.1:1/", [streaming({}, "")], 1)
    assert len(done.errors) == 1
    assert done.errors[0].startswith("ConnectError")
