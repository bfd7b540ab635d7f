"""An HTTP server that speaks the contract as a foreign engine does, computing nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.http_server import HttpServer
from tests.coordinator.stub_words import next_token


class ForeignServer:
    """Encode, prefill and decode over HTTP, in the forms of wire-protocol §3, §5.1 and §6.

    Attributes:
        requests: bodies of generate as they came.
        addressed: whether an encoder answers addresses; without, and `evicted`, it has nothing.
        status, body: answered instead, where set.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.healthy = True
        self.evicted = False
        self.cut_after: int | None = None
        self.status = 0
        self.body: Any = None
        self.url = ""
        self._server: HttpServer | None = None

    async def start(self) -> str:
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/chat/completions/render", self._render, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ]
        )
        self._server = HttpServer(app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{await self._server.start()}"
        return self.url

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.1)

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _render(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse(
            {
                "request_id": "chatcmpl-1",
                "token_ids": [2, 9, 9, 9, 9, 30],
                "features": {
                    "mm_hashes": {"image": ["a"]},
                    "mm_placeholders": {"image": [{"offset": 1, "length": 4}]},
                    "kwargs_data": {"image": ["gaF4gqRkYXRhAaVmaWVsZJKnYmF0Y2hlZIA="]},
                    "mm_metadata": {"image": ["gaF4gqRkYXRhAaVmaWVsZJKnYmF0Y2hlZIA="]},
                },
                "sampling_params": {"max_tokens": body.get("max_tokens", 5), "temperature": 0.0},
            }
        )

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.status:
            return JSONResponse(self.body, self.status)
        features = body.get("features") or {}
        kwargs = features.get("kwargs_data")
        if kwargs and body["sampling_params"].get("max_tokens") == 1 and not body.get("stream"):
            entry: dict[str, Any] = {"item_indices": [0], "metadata": {"x": [1]}}
            if self.evicted:
                entry["metadata"] = {}
            else:
                entry |= {"peer_host": "h", "peer_port": 5601}
            hashes = [h for column in features["mm_hashes"].values() for h in column]
            return JSONResponse(self._answer([], dict.fromkeys(hashes, entry), None))
        if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            kv = {"do_remote_prefill": True, "remote_engine_id": "e"}
            return JSONResponse(self._answer([1], None, kv))
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    def _answer(self, tokens: list[int], ec: Any, kv: Any) -> dict[str, Any]:
        return {
            "request_id": "generate-tokens-1",
            "model": "m",
            "created": 1,
            "usage": {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0},
            "choices": [{"index": 0, "finish_reason": "length", "token_ids": tokens}],
            "ec_transfer_params": ec,
            "kv_transfer_params": kv,
        }

    async def _stream(self, body: dict[str, Any]) -> Any:
        tokens = list(body["token_ids"])
        count = body["sampling_params"]["max_tokens"]
        for made in range(count):
            if made == self.cut_after:
                self.cut_after = None
                return
            token = next_token(tokens, body["sampling_params"].get("seed"), 0)
            tokens.append(token)
            choice = {
                "index": 0,
                "token_ids": [token],
                "finish_reason": "length" if made + 1 == count else None,
            }
            yield _event({"request_id": "generate-tokens-1", "choices": [choice]})
            await asyncio.sleep(0)
        yield _event({"request_id": "generate-tokens-1", "usage": None, "choices": []})
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
