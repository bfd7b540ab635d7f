"""Media URLs: what is fetched, and everything that is not."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from protocol.deadline import Deadline
from protocol.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    Unprocessable,
)
from render.config import MediaConfig
from render.fetch import MediaFetcher, check_public
from serving.http_server import HttpServer

PARAM = "messages[0].content[0].image_url"
METADATA = "http://169.254.169.254/latest/meta-data/"

HOSTILE = [
    # loopback in every spelling
    "http://127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://2130706433/",
    "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://017700000001/",
    "http://0x7f.1/", "http://0/", "http://0.0.0.0/", "http://127.0.0.1:22/",
    "http://127.127.127.127/", "http://localhost/", "http://LOCALHOST./", "http://localhost:6379/",
    "http://[::1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::]/", "http://[::1]:8080/",
    # IPv4 inside IPv6
    "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::127.0.0.1]/",
    "http://[::ffff:169.254.169.254]/", "http://[::ffff:10.0.0.1]/",
    "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::169.254.169.254]/",
    "http://[64:ff9b:1::a00:1]/", "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::]/",
    "http://[2001:0:7f00:1::]/",
    # private and link-local networks
    "http://10.0.0.1/", "http://10.1/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.0.1/", "http://192.168.1/", "http://3232235521/", "http://0xc0a80001/",
    "http://0300.0250.0.1/", "http://100.64.0.1/", "http://198.18.0.1/", "http://192.0.2.1/",
    "http://203.0.113.1/", "http://[fc00::1]/", "http://[fd12:3456::1]/", "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/", "http://[fec0::1]/", "http://[2001:db8::1]/",
    # metadata services
    METADATA, "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
    "http://[fd00:ec2::254]/", "http://169.254.170.2/v2/credentials",
    # multicast, broadcast, reserved
    "http://224.0.0.1/", "http://255.255.255.255/", "http://240.0.0.1/", "http://[ff02::1]/",
    # other digits and dots that normalise to addresses
    "http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/", "http://\uff11\uff12\uff17.0.0.1/",
    # credentials, parser tricks, control characters
    "http://user:pass@8.8.8.8/", "http://8.8.8.8@127.0.0.1/", "http://127.0.0.1#@8.8.8.8/",
    "http://8.8.8.8\\@127.0.0.1/", "http://127.0.0.1\\.example.org/", "http:\\\\127.0.0.1\\",
    "http://exa\tmple.org/", "http://example.org/\r\nHost: x", " http://example.org/",
    "http://example.org:99999/", "http://[::1", "http://", "http:///path", "//example.org/",
    # other schemes
    "file:///etc/passwd", "FILE:///etc/passwd", "ftp://example.org/", "gopher://127.0.0.1:70/_x",
    "dict://127.0.0.1:11211/", "javascript:alert(1)", "jar:http://example.org!/", "unix:/run/x",
    "http+unix://%2Frun%2Fx/", "s3://bucket/key", "blob:http://example.org/x", "/etc/passwd", "",
]  # fmt: skip


def fetcher(**changes: Any) -> MediaFetcher:
    return MediaFetcher(MediaConfig(**changes))


async def fetch(url: str, deadline_s: float = 10.0, **changes: Any) -> bytes:
    media = fetcher(**changes)
    try:
        return await media.fetch(url, PARAM, Deadline.after(deadline_s))
    finally:
        await media.close()


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_public_addresses_pass(address: str) -> None:
    check_public(ipaddress.ip_address(address))


def test_the_list_of_hostile_urls_is_long() -> None:
    assert len(set(HOSTILE)) >= 60


@pytest.mark.parametrize("url", HOSTILE)
async def test_a_hostile_url_is_refused_with_its_field(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await fetch(url)
    assert caught.value.param == PARAM


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A web site on loopback, which tests must allow to reach."""

    async def image(_request: Request) -> Response:
        return Response(b"image bytes", media_type="image/png")

    async def redirect(request: Request) -> Response:
        return RedirectResponse(request.query_params["to"])

    async def loop(_request: Request) -> Response:
        return RedirectResponse("/loop")

    async def status(request: Request) -> Response:
        return Response(b"x", int(request.query_params["code"]))

    async def endless(_request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b"x" * 4096

        return StreamingResponse(chunks())

    async def slow(_request: Request) -> Response:
        await asyncio.sleep(5)
        return Response(b"late")

    async def empty(_request: Request) -> Response:
        return Response(b"")

    routes = [
        Route("/" + handler.__name__, handler)
        for handler in (image, redirect, loop, status, endless, slow, empty)
    ]
    server = HttpServer(Starlette(routes=routes), "127.0.0.1", 0)
    port = await server.start()
    yield f"http://127.0.0.1:{port}"
    await server.stop(0.0)


async def test_an_allowed_address_is_fetched(site: str) -> None:
    assert await fetch(f"{site}/image", allow_private_addresses=True) == b"image bytes"


async def test_a_relative_redirect_is_followed(site: str) -> None:
    assert await fetch(f"{site}/redirect?to=/image", allow_private_addresses=True) == b"image bytes"


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://example.org/", "http://user@example.org/", "gopher://x"]
)
async def test_a_redirect_is_checked_like_the_first_url(site: str, target: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await fetch(f"{site}/redirect?to={target}", allow_private_addresses=True)
    assert caught.value.param == PARAM


async def test_a_redirect_to_a_domain_that_is_not_allowed_is_refused(site: str) -> None:
    with pytest.raises(InvalidRequest, match="allowed media domains"):
        await fetch(
            f"{site}/redirect?to=http://localhost/image",
            allow_private_addresses=True,
            allowed_domains=("127.0.0.1",),
        )


async def test_redirects_without_end_are_given_up(site: str) -> None:
    with pytest.raises(Unprocessable, match="redirects too often"):
        await fetch(f"{site}/loop", allow_private_addresses=True)


@pytest.mark.parametrize("code", [204, 400, 401, 404, 429, 500, 503])
async def test_another_status_is_unprocessable(site: str, code: int) -> None:
    with pytest.raises(Unprocessable, match=str(code)):
        await fetch(f"{site}/status?code={code}", allow_private_addresses=True)


async def test_nothing_is_unprocessable(site: str) -> None:
    with pytest.raises(Unprocessable):
        await fetch(f"{site}/empty", allow_private_addresses=True)


async def test_an_endless_body_is_cut_at_the_limit(site: str) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        await fetch(f"{site}/endless", allow_private_addresses=True, max_download_bytes=100_000)
    assert caught.value.param == PARAM


async def test_a_slow_host_is_given_up(site: str) -> None:
    with pytest.raises(Unprocessable, match="in time"):
        await fetch(f"{site}/slow", allow_private_addresses=True, fetch_timeout_s=0.05)
    with pytest.raises(DeadlineExceeded):
        await fetch(f"{site}/slow", 0.05, allow_private_addresses=True)


async def test_a_closed_port_is_unprocessable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(Unprocessable):
            await fetch(url, allow_private_addresses=True)


async def test_only_listed_domains_are_fetched() -> None:
    for url in ("http://example.org/x", "http://good.example.com.evil.org/", "http://8.8.8.8/"):
        with pytest.raises(InvalidRequest, match="allowed media domains"):
            await fetch(url, allowed_domains=("good.example.com",))


Resolver = Callable[..., list[Any]]


def resolving(monkeypatch: pytest.MonkeyPatch, answers: list[str]) -> list[str]:
    """Make names resolve to the next answer each time; returns the names that were asked for."""
    asked: list[str] = []

    def resolve(host: str, port: int, *_args: Any, **_kwargs: Any) -> list[Any]:
        asked.append(host)
        address = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


async def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["10.0.0.7"])
    with pytest.raises(InvalidRequest, match="not public"):
        await fetch("http://innocent.example/")


async def test_an_answer_that_changes_is_not_asked_for_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checked address is connected to: the second answer, loopback, is never seen."""
    asked = resolving(monkeypatch, ["203.0.114.1", "127.0.0.1"])
    connected: list[str] = []

    async def connect(self: object, host: str, *_args: Any, **_kwargs: Any) -> Any:
        import httpcore2

        connected.append(host)
        raise httpcore2.ConnectError("no network here")

    monkeypatch.setattr("httpcore2.AnyIOBackend.connect_tcp", connect)
    with pytest.raises(Unprocessable):
        await fetch("http://changing.example/")
    assert asked == ["changing.example"]
    assert connected == ["203.0.114.1"]


async def test_a_proxy_of_the_environment_is_not_used(
    monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9/")
    assert await fetch(f"{site}/image", allow_private_addresses=True) == b"image bytes"


async def test_data_urls_are_decoded() -> None:
    assert await fetch("data:image/png;base64,YWJj") == b"abc"
    assert await fetch("DATA:;BASE64,YWJj") == b"abc"
    assert await fetch("data:image/png;charset=x;base64,YWI%3D") == b"ab"


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64", "data:;base64,a*b", "data:;base64,", "data:;base64,YWJ",
     "data:;base64,日本"],
)  # fmt: skip
async def test_a_bad_data_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await fetch(url)
    assert caught.value.param == PARAM


async def test_a_large_data_url_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PayloadTooLarge):
        await fetch("data:;base64," + "A" * 4000, max_download_bytes=1000)


def test_every_refusal_is_a_client_error() -> None:
    for error in (InvalidRequest, PayloadTooLarge, Unprocessable):
        assert issubclass(error, ClientError)
