"""Replicas that answer at once, over real gRPC: for tests of the coordinator alone.

They keep the protocol's rules (handles must be published, embeddings must have been encoded,
KV blocks are handed over once) so that a coordinator that breaks them fails, but compute nothing:
the next token is a hash of everything before it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TransferError, TriptychError
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.generate import GenerateRequest, Logprobs, TokenLogprob, Usage
from protocol.replica import Fingerprint, Replica, ReplicaStatus, Role
from protocol.rpc import (
    DESCRIBE,
    ENCODE,
    GENERATE,
    HOLDINGS,
    KV_RELEASE,
    PREFILL,
    RENDER,
    RENDER_RELEASE,
    RESERVE,
    STATUS,
    Empty,
    EncodeCall,
    Encoded,
    Holdings,
    Prefilled,
    ReleaseCall,
    RenderCall,
    Rendered,
    Reservation,
    ReserveCall,
    Reserved,
    ReserveItem,
    TokenDelta,
)
from protocol.sampling import SamplingParams
from protocol.transfer import EcItem, KvHandoff, kv_params, parse_ec_params, parse_kv_handoff
from serving.rpc_server import RpcServer
from tests.coordinator.stub_words import next_token

ROWS = 4
IMAGE_PAD = 9
FINGERPRINT = Fingerprint("m", "", "float32", "kv1/16")
END = 1
"""The token that ends a sequence."""

_ids = itertools.count()


class Cluster:
    """What the stubs share: the bytes that the exchange would carry."""

    def __init__(self) -> None:
        self.pixels: set[str] = set()
        self.embeddings: set[str] = set()
        self.expected: dict[str, asyncio.Future[None]] = {}
        self.kv: set[str] = set()
        self.encodes: Counter[str] = Counter()
        self.calls: list[tuple[str, Any]] = []
        self.cancelled: list[str] = []
        self.running = 0


class StubReplica:
    """One replica of any role.

    Attributes:
        fail: called before each call with its name; what it raises is the answer.
        gate: each token waits for it.
        hang: calls never answer.
        token_s: how long a token takes.
        notices: what is told of the store; nothing unless a test does.
    """

    def __init__(
        self,
        role: Role,
        cluster: Cluster,
        *,
        fingerprint: Fingerprint = FINGERPRINT,
        has_vision: bool | None = None,
    ) -> None:
        self.role = role
        self.cluster = cluster
        self.fail: Callable[[str], TriptychError | None] = lambda _name: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.hang = False
        self.token_s = 0.0
        self.fail_at_token: int | None = None
        self.served: Counter[str] = Counter()
        self.notices: asyncio.Queue[Holdings] = asyncio.Queue()
        self.status = ReplicaStatus()
        self.replica: Replica
        self._fingerprint = None if role == "render" else fingerprint
        self._has_vision = (
            role in ("prefill", "prefill_decode", "all", "encode")
            if has_vision is None
            else has_vision
        )
        self._server = RpcServer("127.0.0.1", 0, "")
        self._changed = asyncio.Event()
        self._offered: dict[str, str] = {}
        self._promised: dict[str, str] = {}
        self._death: asyncio.Task[None] | None = None

    async def start(self) -> Replica:
        server = self._server
        server.add_unary(DESCRIBE, self._describe)
        server.add_stream(STATUS, self._status)
        if self.role == "render":
            server.add_unary(RENDER, self._render)
            server.add_unary(RENDER_RELEASE, self._release_pixels)
        else:
            server.add_unary(RESERVE, self._reserve)
            server.add_stream(HOLDINGS, self._holdings)
            server.add_unary(ENCODE, self._encode)
            server.add_unary(PREFILL, self._prefill)
            server.add_unary(KV_RELEASE, self._release_kv)
            server.add_stream(GENERATE, self._generate)
        port = await server.start()
        self.replica = Replica(
            id=f"{self.role}-{next(_ids)}",
            role=self.role,
            grpc=f"127.0.0.1:{port}",
            fingerprint=self._fingerprint,
            model="stub",
            max_model_len=4096,
            has_vision=self._has_vision,
        )
        return self.replica

    async def stop(self, grace: float = 0.0) -> None:
        if self._death is not None:
            await self._death
        await self._server.stop(grace)

    def say(self, status: ReplicaStatus) -> None:
        self.status = status
        self._changed.set()

    async def _before(self, name: str, request: Any) -> None:
        self.served[name] += 1
        self.cluster.calls.append((name, request))
        if self.hang:
            await asyncio.Event().wait()
        error = self.fail(name)
        if error is not None:
            raise error

    async def _describe(self, _call: Empty, _deadline: Deadline) -> Replica:
        if self.hang:
            await asyncio.Event().wait()
        return self.replica

    async def _status(
        self, _call: Empty, _deadline: Deadline
    ) -> AsyncGenerator[ReplicaStatus, None]:
        while True:
            self._changed.clear()
            yield self.status
            await self._changed.wait()

    async def _holdings(self, _call: Empty, _deadline: Deadline) -> AsyncGenerator[Holdings, None]:
        while True:
            yield await self.notices.get()

    # --- render

    async def _render(self, call: RenderCall, _deadline: Deadline) -> Rendered:
        await self._before("render", call)
        body = msgspec.json.decode(call.body)
        if call.endpoint == "chat":
            if not body["messages"]:
                raise InvalidRequest("messages must not be empty", "messages")
            prompts = [[part for m in body["messages"] for part in _parts(m["content"])]]
        else:
            prompt = body["prompt"]
            several = isinstance(prompt, list) and isinstance(prompt[0], str)
            prompts = [[str(text)] for text in (prompt if several else [prompt])]
        return Rendered([self._request(call, body, parts) for parts in prompts])

    def _request(self, call: RenderCall, body: dict[str, Any], parts: list[str]) -> GenerateRequest:
        ids: list[int] = [2]
        hashes: list[str] = []
        ranges: list[PlaceholderRange] = []
        for part in parts:
            if part.startswith("image:"):
                hashes.append(part.removeprefix("image:"))
                ranges.append(PlaceholderRange(len(ids), ROWS))
                ids += [IMAGE_PAD] * ROWS
            else:
                ids += [10 + ord(c) % 80 for c in part]
        features = None
        if hashes:
            handles: dict[str, list[EcItem | None]] = {
                "image": [self._publish(call, mm_hash) for mm_hash in hashes]
            }
            features = MultiModalFeatures(
                {"image": hashes},
                {"image": ranges},
                None if call.publish else {"image": ["AAAA"] * len(hashes)},
                {"image": ["gA=="] * len(hashes)},
                handles if call.publish else None,
            )
        return GenerateRequest(
            token_ids=ids,
            features=features,
            request_id=call.request_id,
            sampling_params=SamplingParams(
                n=body.get("n") or 1,
                temperature=body.get("temperature", 0.0),
                max_tokens=body.get("max_tokens", 8),
                seed=body.get("seed"),
                stop=body.get("stop"),
                logprobs=1 if body.get("logprobs") else None,
                extra_args={"ec_transfer_params": body.get("ec_transfer_params"), "other": 1},
            ),
            cache_salt=body.get("cache_salt"),
        )

    def _publish(self, call: RenderCall, mm_hash: str) -> EcItem:
        key = f"{self.replica.id}/{call.request_id}/{mm_hash}"
        if call.publish:
            self.cluster.pixels.add(key)
        return EcItem(mm_hash, "127.0.0.1", 1, key)

    async def _release_pixels(self, call: ReleaseCall, _deadline: Deadline) -> Empty:
        owned = tuple(f"{self.replica.id}/{request_id}/" for request_id in call.request_ids)
        self.cluster.pixels -= {key for key in self.cluster.pixels if key.startswith(owned)}
        return Empty()

    # --- workers

    async def _reserve(self, call: ReserveCall, _deadline: Deadline) -> Reserved:
        await self._before("reserve", call)
        return Reserved([self._reservation(item, call) for item in call.items])

    def _reservation(self, item: ReserveItem, call: ReserveCall) -> Reservation:
        key = self._key(call.cache_salt, item.mm_hash)
        found = self._item(key, item.mm_hash, item.rows)
        if key in self.cluster.embeddings:
            return Reservation("held", found)
        if key in self.cluster.expected:
            return Reservation("in_flight", found)
        promised = self._promised.get(key, "")
        if promised in call.avoid:
            promised = ""
        if promised or call.delegate:
            self._promised[key] = promised or call.delegate
            return Reservation("elsewhere", None, self._promised[key])
        self.cluster.expected[key] = asyncio.get_running_loop().create_future()
        return Reservation("yours", found)

    def _key(self, salt: str, mm_hash: str) -> str:
        return f"{self.replica.id}/{salt}/{mm_hash}"

    def _item(self, key: str, mm_hash: str, rows: int) -> EcItem:
        return EcItem(mm_hash, "127.0.0.1", 2, key, shape=(rows, 8), expires_at=9e9)

    async def _encode(self, call: EncodeCall, _deadline: Deadline) -> Encoded:
        [item] = call.items
        key = self._key(call.cache_salt, item.mm_hash)
        loop = asyncio.get_running_loop()
        expected = self.cluster.expected.setdefault(key, loop.create_future())
        try:
            await self._before("encode", call)
            if item.handle is not None and item.handle.key not in self.cluster.pixels:
                raise TransferError("pixels are gone", "missing", (item.mm_hash,))
            reused = key in self.cluster.embeddings
            if not reused:
                self.cluster.encodes[item.mm_hash] += 1
            await self.gate.wait()
            self.cluster.embeddings.add(key)
            return Encoded([self._item(key, item.mm_hash, item.rows)], [reused])
        finally:
            self.cluster.expected.pop(key, None)
            if not expected.done():
                expected.set_result(None)

    async def _check_media(self, request: GenerateRequest, *, pixels: bool) -> None:
        if request.features is None:
            return
        params = parse_ec_params(request.ec_transfer_params or {})
        for item in request.features.items():
            if item.handle is not None:
                assert pixels, "pixels were sent to a replica without need"
                if item.handle.key not in self.cluster.pixels:
                    raise TransferError("pixels are gone", "missing", (item.mm_hash,))
                continue
            assert item.kwargs is None
            found = params.items[item.mm_hash]
            if found.key in self.cluster.expected:
                await asyncio.shield(self.cluster.expected[found.key])
            if found.key not in self.cluster.embeddings:
                raise TransferError(
                    "embedding is gone", "missing", (item.mm_hash,), None, "prefill"
                )

    async def _prefill(self, request: GenerateRequest, _deadline: Deadline) -> Prefilled:
        await self._before("prefill", request)
        await self._check_media(request, pixels=not request.ec_transfer_params)
        key = f"{self.replica.id}/{next(_ids)}"
        before = [*request.token_ids, *(request.resume_token_ids or ())]
        sampling = request.sampling_params
        firsts = [next_token(before, sampling.seed, i) for i in range(sampling.n)]
        done = (sampling.max_tokens or 99) <= len(request.resume_token_ids or ()) + 1
        if not done:
            self.cluster.kv.add(key)
            self._offered[request.request_id or ""] = key
        handoff = KvHandoff(EcItem("", "127.0.0.1", 3, key), len(before), 16, tuple(firsts))
        deltas = [
            _delta(request, i, [token], "length" if done else None)
            for i, token in enumerate(firsts)
        ]
        return Prefilled(deltas, None if done else kv_params(handoff), Usage())

    async def _release_kv(self, call: ReleaseCall, _deadline: Deadline) -> Empty:
        freed = {*call.keys, *(self._offered.get(i, "") for i in call.request_ids)}
        self._offered = {i: key for i, key in self._offered.items() if key not in freed}
        self.cluster.kv -= freed
        return Empty()

    async def _generate(
        self, request: GenerateRequest, _deadline: Deadline
    ) -> AsyncGenerator[TokenDelta, None]:
        await self._before("generate", request)
        sampling = request.sampling_params
        resumed = list(request.resume_token_ids or ())
        sequences = [list(resumed) for _ in range(sampling.n)]
        if request.kv_transfer_params:
            handoff = parse_kv_handoff(request.kv_transfer_params)
            assert handoff is not None
            if handoff.source.key not in self.cluster.kv:
                raise TransferError("the KV blocks are gone", "missing")
            self.cluster.kv.discard(handoff.source.key)
            for sequence, token in zip(sequences, handoff.first_tokens, strict=True):
                sequence.append(token)
        else:
            await self._check_media(
                request, pixels=self.role == "all" or not request.ec_transfer_params
            )
        self.cluster.running += 1
        ended = False
        made = 0
        try:
            open_choices = set(range(sampling.n))
            while open_choices:
                for index in sorted(open_choices):
                    if self.fail_at_token is not None and made >= self.fail_at_token:
                        self._death = asyncio.create_task(self._server.stop(0))
                        await asyncio.Event().wait()
                    await self.gate.wait()
                    sequence = sequences[index]
                    token = next_token([*request.token_ids, *sequence], sampling.seed, index)
                    sequence.append(token)
                    made += 1
                    last = len(sequence) >= (sampling.max_tokens or 99)
                    yield _delta(request, index, [token], "length" if last else None)
                    await asyncio.sleep(self.token_s)
                    if last:
                        open_choices.discard(index)
            ended = True
        finally:
            self.cluster.running -= 1
            if not ended:
                self.cluster.cancelled.append(request.request_id or "")


def _delta(request: GenerateRequest, index: int, tokens: list[int], finish: Any) -> TokenDelta:
    logprobs = None
    if request.sampling_params.logprobs is not None:
        logprobs = Logprobs([TokenLogprob(token, -0.5, 1) for token in tokens])
    return TokenDelta(index, tokens, logprobs, finish)


def _parts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        part["text"] if part["type"] == "text" else "image:" + part["image_url"]["url"]
        for part in content
    ]
