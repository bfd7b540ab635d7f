"""The HTTP server in our loop: ports, ends, and bodies that are refused over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from protocol.errors import Unavailable
from serving.http import edge, json_response
from serving.http_server import HttpServer


async def sized(request: Request) -> Response:
    return json_response({"bytes": len(await request.body())})


async def test_the_port_is_known_when_it_is_up() -> None:
    server = HttpServer(edge([Route("/", sized, methods=["POST"])]), "127.0.0.1", 0)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.post("/", content=b"abc")).json() == {"bytes": 3}
    await server.stop()


async def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            await HttpServer(edge([]), "127.0.0.1", port).start()


async def test_a_port_is_free_again_after_the_stop() -> None:
    first = HttpServer(edge([]), "127.0.0.1", 0)
    port = await first.start()
    await first.stop()
    second = HttpServer(edge([]), "127.0.0.1", port)
    assert await second.start() == port
    await second.stop()


async def test_stopping_twice_and_unstarted_is_harmless() -> None:
    server = HttpServer(edge([]), "127.0.0.1", 0)
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_far_over_the_limit_is_answered_with_413(chunked: bool) -> None:
    """The client is still sending when it is refused, and must be able to read why."""
    server = HttpServer(
        edge([Route("/", sized, methods=["POST"])], max_body_bytes=10_000), "127.0.0.1", 0
    )
    port = await server.start()
    body = b"x" * 50_000_000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answers = [await http.post("/", content=chunks() if chunked else body) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [413, 413, 413]
        assert (await http.post("/", content=b"abc")).json() == {"bytes": 3}
    await server.stop()


async def test_a_client_that_leaves_ends_the_stream_at_once() -> None:
    began = asyncio.Event()
    ended = asyncio.Event()

    async def stream(_request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            try:
                yield b"data: 1\n\n"
                began.set()
                await asyncio.Event().wait()
            finally:
                ended.set()

        return StreamingResponse(events())

    server = HttpServer(edge([Route("/", stream)]), "127.0.0.1", 0)
    port = await server.start()
    async with httpx.AsyncClient() as http, http.stream("GET", f"http://127.0.0.1:{port}/"):
        async with asyncio.timeout(5):
            await began.wait()
    async with asyncio.timeout(5):
        await ended.wait()
    await server.stop()


async def test_a_stop_cancels_what_does_not_end_within_the_grace() -> None:
    began = asyncio.Event()

    async def forever(_request: Request) -> Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    server = HttpServer(edge([Route("/", forever)]), "127.0.0.1", 0)
    port = await server.start()

    async def ask() -> int:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"http://127.0.0.1:{port}/")).status_code

    task = asyncio.create_task(ask())
    await began.wait()
    async with asyncio.timeout(10):
        await server.stop(grace_s=1)
    assert await task == 500


async def test_small_answers_do_not_wait_for_an_acknowledgement() -> None:
    server = HttpServer(edge([Route("/", sized, methods=["POST"])]), "127.0.0.1", 0)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        await http.post("/", content=b"abc")
        assert server._server is not None
        (connection,) = server._server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()
