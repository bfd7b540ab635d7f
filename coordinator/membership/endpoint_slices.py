"""EndpointSlices of a Kubernetes namespace: listed, then watched, listed again when that is needed.

`EndpointSlices.follow` yields the ready endpoints as a whole after every change. A watch that ends
goes on where it stopped; one that is too old (410 Gone) begins with a new list, and so does every
`resync_s`, in case an event was lost. While the API server cannot be reached the last view stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec

from protocol.errors import InvalidRequest

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the API server's certificate authority."""

_BACKOFF_S = (0.1, 10.0)
_GONE = 410
_SHORTEST_WATCH_S = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A port of a ready pod.

    Attributes:
        address: `host:port`.
        pod: the pod's uid, new when a pod takes over an address; "" where it is not known.
    """

    address: str
    pod: str


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server.

    Attributes:
        url: its base URL, without a slash at the end.
        namespace: whose EndpointSlices to watch.
        account: folder of the service account; a token and a certificate are read from it where
            they are there, the token before every request because it is renewed.
    """

    url: str
    namespace: str
    account: Path = ACCOUNT

    @classmethod
    def find(cls, url: str = "", namespace: str = "", account: Path = ACCOUNT) -> Access:
        """From the given values, and for what is empty from a pod's environment.

        Raises:
            InvalidRequest: says what is missing.
        """
        if not url:
            host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise InvalidRequest(
                    "this is not a pod: name the API server with --kubernetes-api, for example "
                    "the address that `kubectl proxy` prints",
                    "kubernetes_api",
                )
            url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        if not namespace:
            file = account / "namespace"
            if not file.is_file():
                raise InvalidRequest(
                    "name the namespace to watch with --kubernetes-namespace",
                    "kubernetes_namespace",
                )
            namespace = file.read_text(encoding="utf-8").strip()
        return cls(url.rstrip("/"), namespace, account)

    def headers(self) -> dict[str, str]:
        """The service account's credential, if there is one."""
        file = self.account / "token"
        if not file.is_file():
            return {}
        return {"Authorization": f"Bearer {file.read_text(encoding='utf-8').strip()}"}

    def verify(self) -> ssl.SSLContext | bool:
        """Whom to trust: the cluster's authority where it is known."""
        file = self.account / "ca.crt"
        return ssl.create_default_context(cafile=str(file)) if file.is_file() else True


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _TargetRef(msgspec.Struct, frozen=True):
    uid: str = ""


class _Endpoint(msgspec.Struct, frozen=True):
    addresses: list[str]
    conditions: _Conditions = _Conditions()
    target: _TargetRef | None = msgspec.field(default=None, name="targetRef")


class _Port(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")


class _Slice(msgspec.Struct, frozen=True):
    metadata: _Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _List(msgspec.Struct, frozen=True):
    metadata: _Metadata
    items: list[_Slice] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Gone(Exception):
    """The watch's place in history is no longer kept."""


class EndpointSlices:
    """The slices that a label selector names.

    Args:
        access: the API server.
        selector: label selector of the slices (they carry their Service's labels).
        port: name of the port that is wanted.
        resync_s: how often everything is listed anew.
    """

    def __init__(
        self, access: Access, selector: str, *, port: str = "grpc", resync_s: float = 600.0
    ) -> None:
        self._access = access
        self._selector = selector
        self._port = port
        self._resync_s = resync_s
        self._slices: dict[str, _Slice] = {}
        self._version = ""

    async def follow(self) -> AsyncGenerator[frozenset[Endpoint], None]:
        """Every ready endpoint, after the first list and after each change; never ends."""
        failures = 0
        while True:
            try:
                async with self._client() as client:
                    await self._list(client)
                    failures = 0
                    yield ready(self._slices.values(), self._port)
                    async with contextlib.aclosing(self._changes(client)) as changes:
                        async for _ in changes:
                            yield ready(self._slices.values(), self._port)
            except _Gone:
                _log.info("the watch of EndpointSlices is too old, listing them again")
            except (httpx.HTTPError, OSError, msgspec.DecodeError) as error:
                failures = min(failures + 1, 8)
                _log.warning("EndpointSlices cannot be read: %s", _reason(error))
                least, most = _BACKOFF_S
                await asyncio.sleep(min(most, least * 2**failures) * random.uniform(0.5, 1.0))  # noqa: S311

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._access.url,
            verify=self._access.verify(),
            trust_env=False,
            timeout=httpx.Timeout(10.0),
        )

    @property
    def _path(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self._access.namespace}/endpointslices"

    async def _list(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(
            self._path, params={"labelSelector": self._selector}, headers=self._access.headers()
        )
        answer.raise_for_status()
        found = msgspec.json.decode(answer.content, type=_List)
        self._slices = {item.metadata.name: item for item in found.items or ()}
        self._version = found.metadata.version

    async def _changes(self, client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
        """One watch after the other until it is time to list again; yields after each change."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._resync_s
        while (left := until - clock()) > 0:
            began = clock()
            async with contextlib.aclosing(self._watch(client, left)) as watch:
                async for _ in watch:
                    yield
            if clock() - began < _SHORTEST_WATCH_S:
                await asyncio.sleep(_SHORTEST_WATCH_S)  # a server that ends each watch at once

    async def _watch(self, client: httpx.AsyncClient, limit_s: float) -> AsyncGenerator[None, None]:
        """Apply events until the server ends the watch.

        Raises:
            _Gone: everything must be listed again.
        """
        seconds = max(1, min(300, round(limit_s)))
        params: dict[str, Any] = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": seconds,
        }
        async with client.stream(
            "GET",
            self._path,
            params=params,
            headers=self._access.headers(),
            timeout=httpx.Timeout(10.0, read=seconds + 10.0),
        ) as answer:
            if answer.status_code == _GONE:
                raise _Gone
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line:
                    self._apply(msgspec.json.decode(line, type=_Event))
                    yield

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            # 410 when history is gone; after any other error the safe way on is the same.
            status = msgspec.json.decode(event.object, type=_Status)
            _log.info("the watch of EndpointSlices failed: %s %s", status.code, status.message)
            raise _Gone
        item = msgspec.json.decode(event.object, type=_Slice)
        if event.type == "DELETED":
            self._slices.pop(item.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._slices[item.metadata.name] = item
        self._version = item.metadata.version


def ready(slices: Iterable[_Slice], port_name: str) -> frozenset[Endpoint]:
    """The endpoints that may get new work. One that is in two slices counts once."""
    found = set()
    for item in slices:
        ports = [p.port for p in item.ports or () if p.name == port_name and p.port]
        for endpoint in item.endpoints or ():
            conditions = endpoint.conditions
            # An unset `ready` means ready, by the API's own definition.
            if conditions.ready is False or conditions.terminating or not endpoint.addresses:
                continue
            host = endpoint.addresses[0]
            pod = endpoint.target.uid if endpoint.target else ""
            for port in ports:
                found.add(Endpoint(f"{f'[{host}]' if ':' in host else host}:{port}", pod))
    return frozenset(found)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        hint = (
            "; the service account must be allowed to list and watch endpointslices"
            if status in (401, 403)
            else ""
        )
        return f"the API server answered {status}{hint}"
    return f"{type(error).__name__}: {error}"
