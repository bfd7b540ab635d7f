"""The HTTP edge: keys before routing, limits, and the contract's error bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from protocol.errors import Overloaded, TransferError
from protocol.generate import GenerateRequest
from serving.http import (
    SSE_DONE,
    decode_json,
    edge,
    json_response,
    read_json,
    require_scale_out,
    schema_violation,
    sse,
)

LIMIT = 1000


async def generate(request: Request) -> Response:
    return json_response(await read_json(request, GenerateRequest))


async def sized(request: Request) -> Response:
    return json_response({"bytes": len(await request.body())})


async def broken(_request: Request) -> Response:
    raise RuntimeError("secret of the implementation")


async def full(_request: Request) -> Response:
    raise Overloaded("the queue is full", None, "edge", (), 2.4)


async def moved(_request: Request) -> Response:
    raise TransferError("gone", "missing", ("h1",), None, "transfer")


async def switched_off(_request: Request) -> Response:
    require_scale_out(enabled=False)
    raise AssertionError


async def fine(_request: Request) -> Response:
    return json_response({"ok": True})


ROUTES = [
    Route("/inference/v1/generate", generate, methods=["POST"]),
    Route("/sized", sized, methods=["POST"]),
    Route("/broken", broken),
    Route("/full", full),
    Route("/moved", moved),
    Route("/off", switched_off, methods=["POST"]),
    Route("/health", fine),
    Route("/live", fine),
    Route("/ping", fine),
    Route("/version", fine),
    Route("/metrics", fine),
]


def client(**options: Any) -> httpx.AsyncClient:
    app = edge(list(ROUTES), max_body_bytes=LIMIT, **options)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://edge")


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/sized", "/no/such/path", "/v1/x"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "key-1"},
        {"Authorization": "Basic key-1"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer ké"},
        {"x-api-key": "key-1"},
    ],
    ids=str,
)
async def test_a_key_is_asked_for_before_routing(path: str, headers: dict[str, str]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    async with client(api_keys=("key-1", "key-2")) as http:
        answer = await http.post(path, headers=encoded)
    assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})


@pytest.mark.parametrize("header", ["Bearer key-1", "bearer key-2", "BEARER  key-1"])
async def test_each_key_is_let_in_whatever_the_case_of_the_scheme(header: str) -> None:
    async with client(api_keys=("key-1", "key-2")) as http:
        answer = await http.post("/sized", headers={"Authorization": header})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/live", "/ping", "/version", "/metrics"])
async def test_the_open_paths_need_no_key(path: str) -> None:
    async with client(api_keys=("key-1",)) as http:
        assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/health/", "/HEALTH", "//health", "/health/../sized"])
async def test_paths_that_look_open_are_not(path: str) -> None:
    async with client(api_keys=("key-1",)) as http:
        assert (await http.get(path)).status_code == 401


async def test_metrics_can_be_protected() -> None:
    async with client(api_keys=("key-1",), protect_metrics=True) as http:
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/health")).status_code == 200
        allowed = await http.get("/metrics", headers={"Authorization": "Bearer key-1"})
        assert allowed.status_code == 200


async def test_preflight_needs_no_key() -> None:
    async with client(api_keys=("key-1",)) as http:
        assert (await http.options("/sized")).status_code == 405


async def test_no_keys_means_that_none_is_asked_for() -> None:
    async with client() as http:
        assert (await http.post("/sized")).status_code == 200


# --- size ------------------------------------------------------------------------------------


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    async with client() as http:
        answer = await http.post("/sized", content=b"x" * (LIMIT + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "body"
    assert answer.json()["error"]["type"] == "PayloadTooLargeError"


async def test_a_chunked_body_is_refused_when_it_grows_past_the_limit() -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * 100

    async with client() as http:
        answer = await http.post("/sized", content=chunks())
    assert answer.status_code == 413
    assert sent <= 12


@pytest.mark.parametrize("declared", ["-5", "abc", "1e9", " 5"])
async def test_a_length_that_is_no_number_does_not_pass_the_limit(declared: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * (LIMIT + 1)

    async with client() as http:
        request = http.build_request("POST", "/sized", content=chunks())
        request.headers["content-length"] = declared
        answer = await http.send(request)
    assert answer.status_code == 413


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    async with client() as http:
        answer = await http.post("/sized", content=b"x" * LIMIT)
    assert answer.json() == {"bytes": LIMIT}


# --- errors ----------------------------------------------------------------------------------


async def test_an_unknown_path_has_the_frameworks_body() -> None:
    async with client() as http:
        answer = await http.get("/nothing")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


async def test_a_wrong_method_has_the_frameworks_body() -> None:
    async with client() as http:
        answer = await http.get("/inference/v1/generate")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["allow"] == "POST"


async def test_a_fault_of_ours_is_told_without_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client() as http:
        answer = await http.get("/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "Internal server error"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "secret of the implementation" in caplog.text


async def test_a_client_that_left_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def left(_request: Request) -> Response:
        raise ClientDisconnect

    app = edge([Route("/", left)])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://edge"
    ) as http:
        await http.get("/")
    assert caplog.text == ""


async def test_overload_says_when_to_come_back() -> None:
    async with client() as http:
        answer = await http.get("/full")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["error"]["retryable"] is True


async def test_a_transfer_error_names_its_kind_and_items() -> None:
    async with client() as http:
        answer = await http.get("/moved")
    assert answer.status_code == 502
    detail = answer.json()["error"]
    assert (detail["kind"], detail["items"], detail["stage"]) == ("missing", ["h1"], "transfer")


async def test_switched_off_endpoints_name_the_flag() -> None:
    async with client() as http:
        answer = await http.post("/off", content=b"whatever")
    assert answer.status_code == 403
    assert "--enable-scale-out" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "PermissionDeniedError"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/jsonx", "multipart/form-data"])
async def test_another_content_type_is_refused(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    async with client() as http:
        answer = await http.post("/inference/v1/generate", content=b"{}", headers=headers)
    assert answer.status_code == 400
    detail = answer.json()["error"]
    assert detail["message"] == "Unsupported Media Type: Only 'application/json' is allowed"
    assert detail["param"] is None


async def test_parameters_of_the_content_type_are_allowed() -> None:
    async with client() as http:
        answer = await http.post(
            "/inference/v1/generate",
            content=b'{"token_ids": [1], "sampling_params": {}}',
            headers={"content-type": "Application/JSON; charset=utf-8"},
        )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"sampling_params": {}}, "body", "token_ids"),
        ({"token_ids": "x", "sampling_params": {}}, "body.token_ids", "array"),
        ({"token_ids": [1, "x"], "sampling_params": {}}, "body.token_ids.1", "int"),
        (
            {"token_ids": [1], "sampling_params": {"temperature": "hot"}},
            "body.sampling_params.temperature",
            "float",
        ),
        (
            {"token_ids": [1], "sampling_params": {"temperature": 3}},
            "body.sampling_params",
            "Value error, temperature must be in [0, 2], got 3.0.",
        ),
        (
            {"token_ids": [-1], "sampling_params": {}},
            "body",
            "Value error, token_ids must not contain negative values",
        ),
        (
            {
                "token_ids": [1, 2, 3],
                "sampling_params": {},
                "features": {
                    "mm_hashes": {"image": ["a", "b"]},
                    "mm_placeholders": {
                        "image": [{"offset": 0, "length": 2}, {"offset": 1, "length": 1}]
                    },
                },
            },
            "body.features",
            "Value error, mm_placeholders must be globally non-overlapping and sorted",
        ),
        (
            {
                "token_ids": [1],
                "sampling_params": {},
                "features": {
                    "mm_hashes": {"image": ["a"]},
                    "mm_placeholders": {"image": [{"offset": 0, "length": 0}]},
                },
            },
            "body.features.mm_placeholders.0",
            "Value error, length must be positive",
        ),
    ],
)
async def test_a_schema_error_names_the_path_of_the_field(
    body: dict[str, Any], param: str, words: str
) -> None:
    async with client() as http:
        answer = await http.post("/inference/v1/generate", json=body)
    detail = answer.json()["error"]
    assert (answer.status_code, detail["type"], detail["code"]) == (400, "Bad Request", 400)
    assert detail["message"].startswith("1 validation error:\n  {'type': ")
    assert words in detail["message"]
    assert detail["param"] == param


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"token_ids": [1], }',
        b"\xff\xfe",
        b'"\xc3\x28"',
        b"[" * 100_000,
    ],
    ids=lambda c: str(c[:12]),
)
async def test_what_is_not_json_is_a_schema_error(content: bytes) -> None:
    async with client() as http:
        answer = await http.post(
            "/inference/v1/generate",
            content=content[:LIMIT],
            headers={"content-type": "application/json"},
        )
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


def test_very_deep_json_is_a_schema_error_and_not_a_stack_overflow() -> None:
    class Open(msgspec.Struct):
        x: Any

    for deep in (b'{"x": ' + b"[" * 200_000, b'{"x": ' + b'{"x":' * 200_000):
        with pytest.raises(type(schema_violation(ValueError("x")))):
            decode_json(deep, Open)


# --- streams ---------------------------------------------------------------------------------


def test_events_are_compact_json_lines() -> None:
    assert sse({"a": [1, None]}) == b'data: {"a":[1,null]}\n\n'
    assert SSE_DONE == b"data: [DONE]\n\n"


async def test_the_edge_does_not_buffer_a_stream() -> None:
    more = asyncio.Event()

    async def stream(_request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield sse(1)
            await more.wait()
            yield SSE_DONE

        return StreamingResponse(events(), media_type="text/event-stream")

    seen: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            seen.append(message["body"])
            more.set()

    async def receive() -> Any:
        await asyncio.Event().wait()

    app = edge([Route("/stream", stream)], api_keys=("k",))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/stream",
        "raw_path": b"/stream",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer k")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("edge", 80),
        "client": ("c", 1),
        "root_path": "",
    }
    async with asyncio.timeout(5):
        await app(scope, receive, send)
    assert seen == [b"data: 1\n\n", SSE_DONE]
