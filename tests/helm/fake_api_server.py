"""A small Kubernetes API server over HTTP: objects, lists, watches, discovery.

Real sockets and the real wire format, for our own client and for Helm's SDK. What it does not
have: authentication beyond recording the header, admission, defaults, controllers (the endpoint
controller is `tests.helm.local_pods`), strategic merge patches, and events older than the last
`forget_history`.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helm.api_discovery import RESOURCES, discovery, selects, status

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group and version, plural, namespace, name."""

_PLURAL = {(version, kind): plural for version, plural, kind in RESOURCES}
_KIND = {(version, plural): kind for version, plural, kind in RESOURCES}


@dataclass
class Request:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class _Event:
    number: int
    type: str
    key: Key
    item: Object


@dataclass
class _State:
    objects: dict[Key, Object] = field(default_factory=dict)
    events: list[_Event] = field(default_factory=list)
    number: int = 1
    oldest: int = 0
    epoch: int = 0
    refuse: int = 0


class FakeApiServer:
    """Serves from a thread while entered; its objects are changed from any thread."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._state = _State()
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> FakeApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_watches()
        self._server.stopping = True
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, namespace: str) -> str:
        """A kubeconfig that names it."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "fake", "user": {}}],
                "contexts": [
                    {
                        "name": "fake",
                        "context": {"cluster": "fake", "user": "fake", "namespace": namespace},
                    }
                ],
            }
        )

    # --- what tests do to it ------------------------------------------------------------------

    def put(self, item: Object) -> Object:
        """Create or replace an object."""
        version, kind = item["apiVersion"], item["kind"]
        meta = item["metadata"]
        key = (version, _PLURAL[version, kind], meta.get("namespace", ""), meta["name"])
        return self.store(key, item)

    def remove(self, version: str, plural: str, namespace: str, name: str) -> None:
        """Delete an object, if it is there."""
        self.delete((version, plural, namespace, name))

    def find(self, version: str, plural: str, namespace: str = "") -> list[Object]:
        """Objects of a kind, copied."""
        with self._changed:
            return [
                copy.deepcopy(item)
                for key, item in sorted(self._state.objects.items())
                if key[:2] == (version, plural) and namespace in ("", key[2])
            ]

    def forget_history(self) -> None:
        """Every watch is too old from now on: running ones are told so, and end."""
        with self._changed:
            self._state.number += 1
            self._state.oldest = self._state.number
            self._state.events.clear()
            self._state.epoch += 1
            self._changed.notify_all()

    def end_watches(self) -> None:
        """Close running watches as a server does after their timeout."""
        with self._changed:
            self._state.epoch += 1
            self._changed.notify_all()

    def lose_event(self, item: Object) -> Object:
        """Change an object without telling any watch, as a bug or a lost packet would."""
        stored = self.put(item)
        with self._changed:
            self._state.events.pop()
        return stored

    def refuse(self, status: int) -> None:
        """Answer everything with this status from now on; 0 ends it."""
        with self._changed:
            self._state.refuse = status
            self._state.epoch += 1
            self._changed.notify_all()

    # --- what the handler does ----------------------------------------------------------------

    @property
    def refusing(self) -> int:
        return self._state.refuse

    def store(self, key: Key, item: Object) -> Object:
        with self._changed:
            state = self._state
            state.number += 1
            before = state.objects.get(key)
            meta = item.setdefault("metadata", {})
            meta["resourceVersion"] = str(state.number)
            meta.setdefault("name", key[3])
            meta.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            if key[2]:
                meta.setdefault("namespace", key[2])
            state.objects[key] = copy.deepcopy(item)
            kind = "MODIFIED" if before else "ADDED"
            state.events.append(_Event(state.number, kind, key, state.objects[key]))
            self._changed.notify_all()
            return copy.deepcopy(item)

    def delete(self, key: Key) -> Object | None:
        with self._changed:
            item = self._state.objects.pop(key, None)
            if item is not None:
                self._state.number += 1
                item["metadata"]["resourceVersion"] = str(self._state.number)
                self._state.events.append(_Event(self._state.number, "DELETED", key, item))
                self._changed.notify_all()
            return item

    def get(self, key: Key) -> Object | None:
        with self._changed:
            return copy.deepcopy(self._state.objects.get(key))

    def listed(self, prefix: tuple[str, str, str], selector: str) -> tuple[list[Object], int]:
        with self._changed:
            items = [
                copy.deepcopy(item)
                for key, item in sorted(self._state.objects.items())
                if _within(key, prefix) and selects(selector, item)
            ]
            return items, self._state.number

    def watch(
        self, prefix: tuple[str, str, str], selector: str, since: int, seconds: float
    ) -> Iterator[Object]:
        """Events as the wire has them; ends after `seconds`, or with `end_watches`."""
        until = time.monotonic() + seconds
        with self._changed:
            epoch = self._state.epoch
        while True:
            with self._changed:
                if since < self._state.oldest:
                    yield {"type": "ERROR", "object": status(410, "Expired", "too old")}
                    return
                fresh = [event for event in self._state.events if event.number > since]
                if not fresh:
                    left = until - time.monotonic()
                    if left <= 0 or self._state.epoch != epoch:
                        return
                    self._changed.wait(min(left, 1.0))
                    continue
                sent = [
                    {"type": event.type, "object": copy.deepcopy(event.item)}
                    for event in fresh
                    if _within(event.key, prefix) and selects(selector, event.item)
                ]
                since = fresh[-1].number
            yield from sent


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: FakeApiServer
    stopping = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        api = self.server.api
        api.requests.append(Request(self.command, url.path, query, dict(self.headers), body))
        if api.refusing:
            self._answer(api.refusing, status(api.refusing, "Refused", "refused by the test"))
            return
        discovered = discovery(url.path)
        if discovered is not None:
            self._answer(200, discovered)
            return
        target = _target(url.path)
        if target is None:
            self._answer(404, status(404, "NotFound", f"{url.path} is not here"))
            return
        prefix, name = target
        if self.command == "GET" and not name and query.get("watch") in ("true", "1"):
            self._watch(prefix, query)
            return
        self._answer(*_respond(api, self.command, prefix, name, query, body))

    def _watch(self, prefix: tuple[str, str, str], query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = self.server.api.watch(
            prefix,
            query.get("labelSelector", ""),
            int(query.get("resourceVersion") or 0),
            float(query.get("timeoutSeconds") or 60),
        )
        try:
            for event in events:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client went away

    def _answer(self, code: int, item: Any) -> None:
        data = json.dumps(item).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _respond(  # noqa: PLR0911
    api: FakeApiServer,
    method: str,
    prefix: tuple[str, str, str],
    name: str,
    query: dict[str, str],
    body: Any,
) -> tuple[int, Object]:
    version, plural, namespace = prefix
    dry = "dryRun" in query
    if method == "POST":
        name = body["metadata"]["name"]
    key = (version, plural, namespace, name)
    if method == "GET" and not name:
        items, number = api.listed(prefix, query.get("labelSelector", ""))
        return 200, {
            "apiVersion": version,
            "kind": f"{_KIND[version, plural]}List",
            "metadata": {"resourceVersion": str(number)},
            "items": items,
        }
    found = api.get(key)
    if method == "POST":
        if found is not None:
            return 409, status(409, "AlreadyExists", f"{name} exists")
        return 201, body if dry else api.store(key, body)
    if found is None and not (method == "PATCH" and "fieldManager" in query):
        return 404, status(404, "NotFound", f'{plural} "{name}" not found')
    if method == "GET":
        return 200, found or {}
    if method == "DELETE":
        return 200, (found or {}) if dry else api.delete(key) or {}
    merged = body if method == "PUT" else {**(found or {}), **body}
    return 200, merged if dry else api.store(key, merged)


def _within(key: Key, prefix: tuple[str, str, str]) -> bool:
    return key[:2] == prefix[:2] and prefix[2] in ("", key[2])


def _target(path: str) -> tuple[tuple[str, str, str], str] | None:
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 2:
        version, rest = "/".join(parts[1:3]), parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or (version, rest[0]) not in _KIND:
        return None
    return (version, rest[0], namespace), rest[1] if len(rest) > 1 else ""
