"""Stages that answer at once, for benchmarks of what stands in front of them.

One process serves render, encode, prefill and decode over gRPC as our replicas do, and over HTTP
as the contract has it. `python -m benchmarks.instant_stages` prints its addresses as one line of
JSON and serves until its standard input ends. The chat's `user` field says how many megabytes of
pixels the picture has; without it there is none.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from protocol.deadline import Deadline
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.generate import GenerateRequest, Usage
from protocol.replica import Fingerprint, Replica, ReplicaStatus, Role
from protocol.rpc import (
    DESCRIBE,
    ENCODE,
    GENERATE,
    KV_RELEASE,
    PREFILL,
    RENDER,
    RENDER_RELEASE,
    RESERVE,
    STATUS,
    Empty,
    EncodeCall,
    Encoded,
    Prefilled,
    ReleaseCall,
    RenderCall,
    Rendered,
    Reservation,
    ReserveCall,
    Reserved,
    TokenDelta,
)
from protocol.sampling import SamplingParams
from protocol.transfer import EcItem, KvHandoff, kv_params
from serving.http_server import HttpServer
from serving.rpc_server import RpcServer

ROWS = 64
TOKENS = [11, 12, 13, 14, 15, 16, 17, 18]
MEGABYTE = 2**20


class Addresses(msgspec.Struct, frozen=True):
    """Where the stages listen: gRPC per role, and one HTTP server for all."""

    grpc: dict[Role, str]
    http: str


class Body(msgspec.Struct, frozen=True):
    """What is read of a chat body."""

    user: str | None = None


def item(mm_hash: str) -> EcItem:
    """A descriptor of an item that nobody will fetch."""
    return EcItem(mm_hash, "127.0.0.1", 5601, f"k/{mm_hash}", "e", (ROWS, 128), "float32", 32768)


@functools.cache
def pixels(megabytes: int) -> str:
    """Base64 of that many megabytes, as long as it would be."""
    return "A" * (megabytes * MEGABYTE * 4 // 3)


def rendered(body: Body, *, inline: bool) -> GenerateRequest:
    """A prompt with a picture that nobody has seen yet, or of text alone."""
    ids = [2, *([9] * ROWS), *range(20, 52)]
    features = None
    if body.user is not None:
        mm_hash = secrets.token_hex(16)
        kwargs: list[str | None] = [pixels(int(body.user))]
        handles: list[EcItem | None] = [item(mm_hash)]
        features = MultiModalFeatures(
            {"image": [mm_hash]},
            {"image": [PlaceholderRange(1, ROWS)]},
            {"image": kwargs} if inline else None,
            {"image": ["gA=="]},
            None if inline else {"image": handles},
        )
    sampling = SamplingParams(max_tokens=len(TOKENS), temperature=0.0)
    return GenerateRequest(
        token_ids=ids, features=features, sampling_params=sampling, request_id=secrets.token_hex(8)
    )


class InstantReplica:
    """One role over gRPC."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._replica: Replica
        server = self._server = RpcServer("127.0.0.1", 0, "")
        server.add_unary(DESCRIBE, self._describe)
        server.add_stream(STATUS, self._status)
        server.add_unary(RENDER, self._render)
        server.add_unary(RENDER_RELEASE, self._release)
        server.add_unary(RESERVE, self._reserve)
        server.add_unary(ENCODE, self._encode)
        server.add_unary(PREFILL, self.prefill)
        server.add_unary(KV_RELEASE, self._release)
        server.add_stream(GENERATE, self._generate)

    async def start(self) -> str:
        """Listen; returns the address."""
        address = f"127.0.0.1:{await self._server.start()}"
        fingerprint = Fingerprint("m", "", "float32", "kv1/16")
        self._replica = Replica(
            f"{self._role}-0", self._role, address, fingerprint=fingerprint, model="m"
        )
        return address

    async def stop(self) -> None:
        """Stop at once."""
        await self._server.stop(0)

    async def _describe(self, _call: Empty, _deadline: Deadline) -> Replica:
        return self._replica

    async def _status(self, _call: Empty, _deadline: Deadline) -> AsyncIterator[ReplicaStatus]:
        yield ReplicaStatus()
        await asyncio.Event().wait()

    async def _render(self, call: RenderCall, _deadline: Deadline) -> Rendered:
        return Rendered([rendered(msgspec.json.decode(call.body, type=Body), inline=False)])

    async def _release(self, _call: ReleaseCall, _deadline: Deadline) -> Empty:
        return Empty()

    async def _reserve(self, call: ReserveCall, _deadline: Deadline) -> Reserved:
        return Reserved([Reservation("yours", item(one.mm_hash)) for one in call.items])

    async def _encode(self, call: EncodeCall, _deadline: Deadline) -> Encoded:
        return Encoded([item(one.mm_hash) for one in call.items], [False] * len(call.items))

    async def prefill(self, request: GenerateRequest, _deadline: Deadline) -> Prefilled:
        """One token, and blocks that nobody will fetch."""
        source = EcItem("kv", "127.0.0.1", 5601, secrets.token_hex(8))
        handoff = KvHandoff(source, len(request.token_ids), 16, (TOKENS[0],))
        return Prefilled([TokenDelta(0, TOKENS[:1])], kv_params(handoff), Usage())

    async def _generate(
        self, _request: GenerateRequest, _deadline: Deadline
    ) -> AsyncIterator[TokenDelta]:
        for number, token in enumerate(TOKENS[1:], 2):
            yield TokenDelta(0, [token], None, "length" if number == len(TOKENS) else None)


async def render_http(request: Request) -> Response:
    """`/v1/chat/completions/render`, inline as the contract has it."""
    body = msgspec.json.decode(await request.body(), type=Body)
    return Response(msgspec.json.encode(rendered(body, inline=True)), media_type="application/json")


async def generate_http(request: Request) -> Response:
    """`/inference/v1/generate` of an encode or of a prefill and decode replica."""
    asked = msgspec.json.decode(await request.body())
    features = asked.get("features") or {}
    encode = features.get("kwargs_data") is not None
    hashes = [one for column in features.get("mm_hashes", {}).values() for one in column]
    params: Any = {"ec_items": [{"mm_hash": one, "peer_host": "127.0.0.1"} for one in hashes]}
    return JSONResponse(
        {
            "request_id": "r",
            "model": "m",
            "created": 1,
            "usage": {"prompt_tokens": len(asked["token_ids"])},
            "ec_transfer_params": params if encode else None,
            "choices": [
                {"index": 0, "finish_reason": "length", "token_ids": [] if encode else TOKENS}
            ],
        }
    )


async def derender_http(request: Request) -> Response:
    """`/v1/chat/completions/derender`."""
    asked = msgspec.json.decode(await request.body())
    choice = asked["generate_response"]["choices"][0]
    text = "".join(f" t{token}" for token in choice["token_ids"])
    message = {"role": "assistant", "content": text}
    return JSONResponse({"choices": [{"index": 0, "message": message}]})


async def serve(make: Callable[[Role], InstantReplica] = InstantReplica) -> None:
    """Serve one replica per role until standard input ends."""
    roles: tuple[Role, ...] = ("render", "encode", "prefill", "decode")
    replicas = {role: make(role) for role in roles}
    http = HttpServer(
        Starlette(
            routes=[
                Route("/v1/chat/completions/render", render_http, methods=["POST"]),
                Route("/inference/v1/generate", generate_http, methods=["POST"]),
                Route("/v1/chat/completions/derender", derender_http, methods=["POST"]),
            ]
        ),
        "127.0.0.1",
        0,
    )
    addresses = {role: await replica.start() for role, replica in replicas.items()}
    url = f"http://127.0.0.1:{await http.start()}"
    print(msgspec.json.encode(Addresses(addresses, url)).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await http.stop(0)
    for replica in replicas.values():
        await replica.stop()


if __name__ == "__main__":
    asyncio.run(serve())
