"""A server that is not ours, over the HTTP contract: vLLM, or anything that speaks it.

Each `protocol.rpc` method has its HTTP form here; what such a server cannot do (release pixels,
release KV blocks: its own leases end them) is answered with nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeVar, cast

import msgspec

from coordinator.clients import guard
from coordinator.clients.http import HttpPeer
from protocol.deadline import Deadline
from protocol.errors import InternalError, NotSupported, Unavailable
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.generate import (
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    Logprobs,
    StreamOptions,
    Usage,
)
from protocol.replica import ReplicaStatus
from protocol.rpc import (
    ENCODE,
    GENERATE,
    KV_RELEASE,
    PREFILL,
    RENDER,
    RENDER_RELEASE,
    STATUS,
    Empty,
    EncodeCall,
    Encoded,
    Method,
    Prefilled,
    RenderCall,
    Rendered,
    TokenDelta,
)
from protocol.sampling import SamplingParams
from protocol.transfer import parse_ec_params

Req = TypeVar("Req")
Rep = TypeVar("Rep")

_RENDER_PATHS = {
    "chat": "/v1/chat/completions/render",
    "completions": "/v1/completions/render",
    "responses": "/v1/responses/render",
    "messages": "/v1/messages/render",
}
_GENERATE = "/inference/v1/generate"
_HAND_OFF = {"do_remote_decode": True, "do_remote_prefill": False}
_HEALTH_S = 1.0


class ForeignClient:
    """`StageClient` over HTTP.

    Args:
        base_url: of the server.
        api_key: presented to it.
    """

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self._peer = HttpPeer(base_url, api_key)

    async def call(self, method: Method[Req, Rep], request: Req, deadline: Deadline) -> Rep:
        """As `StageClient.call`."""
        answer: Any
        given = cast("Any", request)
        if method is cast("Any", RENDER):
            answer = await self._render(given, deadline)
        elif method is cast("Any", ENCODE):
            answer = await self._encode(given, deadline)
        elif method is cast("Any", PREFILL):
            answer = await self._prefill(given, deadline)
        elif method in cast("Any", (RENDER_RELEASE, KV_RELEASE)):
            answer = Empty()
        else:
            raise NotSupported(f"{method.name} has no form in the HTTP contract")
        return cast("Rep", answer)

    def stream(
        self, method: Method[Req, Rep], request: Req, deadline: Deadline
    ) -> AsyncGenerator[Rep, None]:
        """As `StageClient.stream`."""
        given = cast("Any", request)
        if method is cast("Any", GENERATE):
            return cast("AsyncGenerator[Rep, None]", self._generate(given, deadline))
        if method is cast("Any", STATUS):
            return cast("AsyncGenerator[Rep, None]", self._statuses(deadline))
        raise NotSupported(f"{method.name} has no form in the HTTP contract")

    async def reset(self) -> None:
        """As `StageClient.reset`."""
        await self._peer.reset()

    async def close(self) -> None:
        """As `StageClient.close`."""
        await self._peer.close()

    async def _render(self, call: RenderCall, deadline: Deadline) -> Rendered:
        body = await self._peer.ask(_RENDER_PATHS[call.endpoint], call.body, deadline)
        if call.endpoint == "completions":
            return Rendered(_decode(body, list[GenerateRequest]))
        return Rendered([_decode(body, GenerateRequest)])

    async def _encode(self, call: EncodeCall, deadline: Deadline) -> Encoded:
        """One request of the items alone: an encoder looks at no token."""
        hashes: dict[str, list[str]] = {}
        ranges: dict[str, list[PlaceholderRange]] = {}
        kwargs: dict[str, list[str | None]] = {}
        at = 0
        for item in call.items:
            if item.text is None:
                raise NotSupported("this encoder takes pixels inline only", stage="encode")
            hashes.setdefault(item.modality, []).append(item.mm_hash)
            ranges.setdefault(item.modality, []).append(PlaceholderRange(at, item.rows))
            kwargs.setdefault(item.modality, []).append(item.text)
            at += item.rows
        request = GenerateRequest(
            token_ids=[0] * at,
            features=MultiModalFeatures(hashes, ranges, kwargs),
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            cache_salt=call.cache_salt or None,
        )
        guard.check(request)
        reply = _decode(
            await self._peer.ask(_GENERATE, _encoded(request), deadline), GenerateResponse
        )
        try:
            params = parse_ec_params(reply.ec_transfer_params or {})
        except ValueError as error:
            raise InternalError(f"{self._peer.base_url} answered {error}", stage="encode") from None
        return Encoded(list(params.items.values()), [], params.foreign)

    async def _prefill(self, request: GenerateRequest, deadline: Deadline) -> Prefilled:
        """Prefill alone; its token is not used, decode samples again."""
        prompt = _continued(request)
        guard.check(prompt)
        one = msgspec.structs.replace(
            prompt,
            stream=False,
            sampling_params=msgspec.structs.replace(prompt.sampling_params, max_tokens=1, n=1),
            kv_transfer_params=_HAND_OFF,
        )
        reply = _decode(await self._peer.ask(_GENERATE, _encoded(one), deadline), GenerateResponse)
        if reply.kv_transfer_params is None:
            raise InternalError(f"{self._peer.base_url} offered no KV blocks", stage="prefill")
        usage = reply.usage or Usage.of(len(one.token_ids), 1)
        return Prefilled([], reply.kv_transfer_params, usage)

    async def _generate(
        self, request: GenerateRequest, deadline: Deadline
    ) -> AsyncGenerator[TokenDelta, None]:
        prompt = _continued(request)
        guard.check(prompt)
        streamed = msgspec.structs.replace(
            prompt, stream=True, stream_options=StreamOptions(include_usage=True)
        )
        async for data in self._peer.events(_GENERATE, _encoded(streamed), deadline):
            if data.startswith(b'{"error"'):
                raise InternalError(f"{self._peer.base_url} failed in mid-stream", stage="decode")
            chunk = _decode(data, GenerateChunk)
            for choice in chunk.choices:
                if choice.finish_reason == "error":
                    raise InternalError(f"{self._peer.base_url} failed", stage="decode")
                if choice.finish_reason == "abort":
                    raise Unavailable(f"{self._peer.base_url} aborted the request")
                yield TokenDelta(
                    choice.index,
                    choice.token_ids,
                    choice.logprobs if isinstance(choice.logprobs, Logprobs) else None,
                    choice.finish_reason,
                    choice.stop_reason,
                )

    async def _statuses(self, deadline: Deadline) -> AsyncGenerator[ReplicaStatus, None]:
        """Ready while /health says 200; ends when the server is not reachable."""
        while True:
            status = await self._peer.get_status("/health", deadline.within(2 * _HEALTH_S))
            yield ReplicaStatus(ready=status == 200)
            await asyncio.sleep(_HEALTH_S)


def _continued(request: GenerateRequest) -> GenerateRequest:
    """Tokens that exist already become part of the prompt; the contract has no other form."""
    resumed = request.resume_token_ids
    if not resumed:
        return request
    params = request.sampling_params
    left = params.max_tokens - len(resumed) if params.max_tokens is not None else None
    return msgspec.structs.replace(
        request,
        token_ids=[*request.token_ids, *resumed],
        resume_token_ids=None,
        sampling_params=msgspec.structs.replace(
            params, max_tokens=left, min_tokens=max(0, params.min_tokens - len(resumed))
        ),
    )


def _encoded(request: GenerateRequest) -> bytes:
    """The contract's JSON, without what is ours."""
    features = request.features
    if features is not None and features.kwargs_handles is not None:
        features = msgspec.structs.replace(features, kwargs_handles=None)
        request = msgspec.structs.replace(request, features=features)
    return msgspec.json.encode(request)


T = TypeVar("T")


def _decode(body: bytes, schema: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InternalError(f"a server answered with garbage: {error}") from None
