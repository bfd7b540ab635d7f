"""Media bytes from `data:` and http(s) URLs, behind the guard of the design's §7.

The address that is checked is the one that is connected to: a connection goes to a resolved,
checked IP and never resolves again, redirects are followed by hand and each hop is checked like
the first, and no proxy of the environment stands in between.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import httpcore2
import httpx2
import pybase64
from httpcore2 import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, NotSupported, PayloadTooLarge, Unprocessable
from render.config import MediaConfig
from render.stills import pack

_DATA_URL = re.compile(r"data:([^,]*?),", re.IGNORECASE)
_SCHEMES = frozenset({"http", "https"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_IPV4_INSIDE = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Mapped addresses, and those through which an IPv6-only network reaches IPv4 (NAT64)."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class MediaFetcher:
    """Turns the URL of a content part into bytes."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._domains = frozenset(domain.lower().rstrip(".") for domain in config.allowed_domains)
        self._client = httpx2.AsyncClient(
            transport=_PinnedTransport(config.allow_private_addresses),
            timeout=httpx2.Timeout(config.read_timeout_s, connect=config.connect_timeout_s),
            follow_redirects=False,
            trust_env=False,
            headers={"User-Agent": "triptych-render", "Accept-Encoding": "identity"},
        )

    async def fetch(self, url: str, param: str, deadline: Deadline) -> bytes:
        """The bytes that a URL stands for.

        Raises:
            InvalidRequest: the URL is malformed, or its host is not allowed.
            PayloadTooLarge: there are too many bytes.
            Unprocessable: the medium could not be fetched.
            DeadlineExceeded: in time.
        """
        if url[:5].lower() == "data:":
            return self._inline(url, param)
        try:
            async with asyncio.timeout(
                min(self._config.fetch_timeout_s, deadline.remaining("render"))
            ):
                return await self._download(url, param)
        except TimeoutError:
            deadline.remaining("render")
            raise Unprocessable("the media host did not answer in time", param) from None

    async def close(self) -> None:
        """Close idle connections."""
        await self._client.aclose()

    def _inline(self, url: str, param: str) -> bytes:
        head = _DATA_URL.match(url)
        if head is None:
            raise InvalidRequest("a data: URL needs a comma before its data", param)
        data = url[head.end() :]
        # Four base64 characters are three bytes: too much is refused before it is decoded.
        if len(data) * 3 // 4 > self._config.max_download_bytes + 2:
            raise self._too_large(param)
        if not head.group(1).lower().endswith(";base64"):
            raise NotSupported("only base64 data: URLs are supported", param)
        try:
            if head.group(1).lower().startswith("video/jpeg;"):
                return pack([pybase64.b64decode(frame, validate=True) for frame in data.split(",")])
            raw = unquote_to_bytes(data) if "%" in data else data.encode("ascii")
            decoded = pybase64.b64decode(raw, validate=True)
        except (ValueError, UnicodeEncodeError):
            raise InvalidRequest("the data: URL is not valid base64", param) from None
        if not decoded:
            raise InvalidRequest("the data: URL is empty", param)
        return decoded

    async def _download(self, url: str, param: str) -> bytes:
        target = self._checked(url, param)
        for _ in range(self._config.max_redirects + 1):
            try:
                async with self._client.stream("GET", target) as response:
                    if response.status_code not in _REDIRECTS:
                        return await self._body(response, param)
                    location = response.headers.get("location", "")
            except _Refused as refused:
                raise InvalidRequest(str(refused), param) from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
                raise Unprocessable(
                    f"the media could not be fetched: {type(error).__name__}", param
                ) from None
            try:
                target = self._checked(str(target.join(location)), param)
            except (httpx2.InvalidURL, ValueError):
                raise Unprocessable("the media host redirects to an invalid URL", param) from None
        raise Unprocessable("the media host redirects too often", param)

    def _checked(self, text: str, param: str) -> httpx2.URL:
        if any(ord(c) <= 32 or ord(c) == 127 for c in text) or "\\" in text:
            raise InvalidRequest("the URL has characters that a URL cannot have", param)
        try:
            url = httpx2.URL(text)
            host = url.host.lower().rstrip(".")
        except (httpx2.InvalidURL, ValueError, UnicodeError):
            raise InvalidRequest("the URL is malformed", param) from None
        if url.scheme not in _SCHEMES:
            raise InvalidRequest(
                f"scheme {url.scheme!r} is not supported; use http, https or data", param
            )
        if url.userinfo:
            raise InvalidRequest("a URL with credentials is not accepted", param)
        if not host:
            raise InvalidRequest("the URL has no host", param)
        if self._domains and host not in self._domains:
            raise InvalidRequest("the host is not one of the allowed media domains", param)
        if url.port is not None and not 0 < url.port < 65536:
            raise InvalidRequest("the URL has a port that does not exist", param)
        if not self._config.allow_private_addresses:
            try:
                _check_name(host)
            except _Refused as refused:
                raise InvalidRequest(str(refused), param) from None
        return url

    async def _body(self, response: httpx2.Response, param: str) -> bytes:
        if response.status_code != 200:
            raise Unprocessable(f"the media host answered {response.status_code}", param)
        limit = self._config.max_download_bytes
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise self._too_large(param)
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                raise self._too_large(param)
        if not body:
            raise Unprocessable("the media host answered with nothing", param)
        return bytes(body)

    def _too_large(self, param: str) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the media is larger than {self._config.max_download_bytes} bytes", param
        )


class _Refused(Exception):
    """An address that media may not come from."""


def check_public(address: IpAddress) -> None:
    """Refuse addresses inside: private, loopback, link-local, reserved, or wrapping one of them.

    Raises:
        _Refused: says why.
    """
    if isinstance(address, ipaddress.IPv6Address):
        carried = _carried(address)
        public = all(map(_is_public, carried)) and (
            _is_public(address)
            if address in _GLOBAL_UNICAST
            else any(address in network for network in _IPV4_INSIDE)
        )
    else:
        public = _is_public(address)
    if not public:
        raise _Refused("the URL leads to an address that is not public")


def _is_public(address: IpAddress) -> bool:
    return address.is_global and not address.is_multicast


def _carried(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Every IPv4 address inside (mapped, NAT64, 6to4, Teredo)."""
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _IPV4_INSIDE):
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [ip for ip in inner if ip is not None]


def _check_name(host: str) -> None:
    """Refuse what is inside by its name or its spelling alone."""
    if host == "localhost" or host.endswith(".localhost"):
        raise _Refused("the URL leads to this machine")
    literal = _literal(host)
    if literal is not None:
        check_public(literal)


def _literal(host: str) -> IpAddress | None:
    """The address that a host spells, in any form that a resolver takes (octal, decimal, ...)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    if re.fullmatch(r"[0-9a-fx.]+", host) is None:
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


class _PinnedBackend(AsyncNetworkBackend):
    """Resolves, checks, and connects to the very address it checked."""

    def __init__(self, allow_private: bool) -> None:
        self._inner = AnyIOBackend()
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = await self._resolve(host, port, timeout)
        error: Exception | None = None
        for address in addresses[:2]:
            try:
                return await self._inner.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
        raise error or httpcore2.ConnectError("the host has no address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class's signature
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        raise _Refused("the URL leads to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _resolve(
        self,
        host: str,
        port: int,
        timeout: float | None,  # noqa: ASYNC109 - passed on from above
    ) -> list[IpAddress]:
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the host name was not resolved in time") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("the host name was not resolved") from None
        addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
        if not self._allow_private:
            for address in addresses:
                check_public(address)
        return list(dict.fromkeys(addresses))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates are read once: that costs tens of milliseconds."""
    return ssl.create_default_context()


class _PinnedTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport over a pool with the pinned backend."""

    def __init__(self, allow_private: bool) -> None:
        context = _tls()
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=64,
            max_keepalive_connections=16,
            keepalive_expiry=15.0,
            network_backend=_PinnedBackend(allow_private),
        )
