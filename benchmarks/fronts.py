"""What the coordinator benchmark compares: our coordinator, and a plain proxy of four JSON calls.

`python -m benchmarks.fronts coordinator|proxy ADDRESSES [REQUESTS]` prints its URL and serves until
its standard input ends; REQUESTS is how many the coordinator lets in at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import httpx
import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.instant_stages import Addresses
from coordinator.admission import AdmissionConfig
from coordinator.config import CoordinatorConfig
from coordinator.membership.static import StaticMembership
from coordinator.server import CoordinatorServer
from protocol.derender import DerenderedDelta
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.rpc import TokenDelta
from serving.http_server import HttpServer
from telemetry import logs


class Words:
    """A derenderer that costs nothing to speak of: a token is the word `t<id>`."""

    def chat(self, _request: ChatCompletionRequest, _prompt_token_ids: Sequence[int]) -> Words:
        """For one choice."""
        return self

    def completion(self, _request: CompletionRequest, _prompt_token_ids: Sequence[int]) -> Words:
        """For one choice."""
        return self

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        """The words of new tokens."""
        return DerenderedDelta(
            content="".join(f" t{token}" for token in delta.token_ids),
            token_ids=delta.token_ids,
            finish_reason=delta.finish_reason,
        )


async def coordinator(addresses: Addresses, requests: int) -> None:
    """Our coordinator over gRPC to the stages; lets in so many requests at once."""
    membership = StaticMembership(list(addresses.grpc.values()), "")
    config = CoordinatorConfig(port=0, admission=AdmissionConfig(requests=requests))
    server = CoordinatorServer(config, membership, Words())
    print(await server.start(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


async def proxy(addresses: Addresses) -> None:
    """What the Renderer API document's example does, as a server: four calls with JSON bodies."""
    client = httpx.AsyncClient(base_url=addresses.http, timeout=120)

    async def ask(path: str, body: object) -> dict[str, object]:
        answer: dict[str, object] = (await client.post(path, json=body)).json()
        return answer

    async def chat(request: Request) -> Response:
        asked = await request.json()
        prompt = await ask("/v1/chat/completions/render", asked)
        token_ids, features = prompt["token_ids"], prompt["features"]
        generate: dict[str, object] = {
            "token_ids": token_ids,
            "sampling_params": prompt["sampling_params"],
        }
        if isinstance(features, dict):
            encode_features = {k: v for k, v in features.items() if k != "mm_metadata"}
            encoded = await ask(
                "/inference/v1/generate",
                {
                    "token_ids": token_ids,
                    "features": encode_features,
                    "sampling_params": {"max_tokens": 1},
                },
            )
            generate["features"] = {k: v for k, v in features.items() if k != "kwargs_data"}
            generate["ec_transfer_params"] = encoded["ec_transfer_params"]
        generated = await ask("/inference/v1/generate", generate)
        return JSONResponse(
            await ask(
                "/v1/chat/completions/derender",
                {"generate_response": generated, "chat_request": asked},
            )
        )

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    server = HttpServer(app, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{await server.start()}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)
    await client.aclose()


if __name__ == "__main__":
    logs.configure("WARNING")
    stages = msgspec.json.decode(sys.argv[2], type=Addresses)
    requests = int(sys.argv[3]) if len(sys.argv) > 3 else AdmissionConfig().requests
    uvloop.run(proxy(stages) if sys.argv[1] == "proxy" else coordinator(stages, requests))
