"""A client's body becomes prompts: token ids, features and sampling parameters."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import msgspec

from coordinator.calls import at_replica
from coordinator.concurrency import Janitor
from coordinator.member import Member
from coordinator.replicas import ReplicaPool
from coordinator.retry import Retries
from coordinator.state import Admitted, RenderedPrompt
from protocol.deadline import Deadline
from protocol.errors import InternalError, TransferError
from protocol.generate import GenerateRequest
from protocol.replica import ENCODES
from protocol.rpc import RENDER, RENDER_RELEASE, ReleaseCall, RenderCall
from protocol.sampling import SamplingParams

_RELEASE_S = 5.0
_TRANSFER_PARAMS = frozenset({"ec_transfer_params", "kv_transfer_params"})


class Rendering:
    """The prompts of one body, rendered again where their pixels are gone.

    Attributes:
        prompts: the latest version.
        asked: the replicas that may hold pixels for it.
    """

    def __init__(self, stage: RenderStage | None, prompts: list[RenderedPrompt]) -> None:
        self.prompts = prompts
        self.asked: set[Member] = set()
        self._stage = stage
        self._lock = asyncio.Lock()

    async def again(self, gone: RenderedPrompt) -> RenderedPrompt:
        """The prompt with fresh pixels; prompts of one body share one new rendering.

        Raises:
            TransferError: the client rendered it, so that it cannot be rendered again.
        """
        async with self._lock:
            latest = self.prompts[gone.number]
            if latest is not gone:
                return latest
            if self._stage is None:
                hashes = tuple(item.mm_hash for item in gone.media)
                raise TransferError("the pixels are gone", "missing", hashes, None, "render")
            self.prompts = await self._stage.run(gone.admitted, self.asked)
            return self.prompts[gone.number]


class RenderStage:
    """Admitted -> RenderedPrompt, one per prompt of the body."""

    def __init__(self, pool: ReplicaPool, janitor: Janitor, retries: Retries) -> None:
        self._pool = pool
        self._janitor = janitor
        self._retries = retries

    @contextlib.asynccontextmanager
    async def rendered(self, admitted: Admitted) -> AsyncIterator[Rendering]:
        """The prompts of a body; leaving the context releases their pixels.

        Raises:
            TriptychError: the body is at fault, or nobody could render it.
        """
        rendering = Rendering(self, [])
        try:
            rendering.prompts = await self.run(admitted, rendering.asked)
            yield rendering
        finally:
            for member in rendering.asked:
                self._release(member, admitted.internal_id)

    async def run(self, admitted: Admitted, asked: set[Member]) -> list[RenderedPrompt]:
        """Render, elsewhere if a replica fails; whoever is asked is added to `asked`."""
        if admitted.endpoint is None or admitted.body is None:
            raise InternalError("there is no body to render", stage="render")
        deadline = admitted.deadline
        call = RenderCall(
            admitted.endpoint,
            admitted.body,
            admitted.internal_id,
            publish=self._takes_handles(),
            lease_s=deadline.remaining("render"),
        )
        config = self._pool.stage("render")
        for attempt in self._retries.attempts(
            "render", config.attempts, deadline, None, admitted.receipt
        ):
            async with (
                attempt,
                at_replica(
                    self._pool,
                    "render",
                    "render",
                    admitted.receipt,
                    deadline,
                    attempt=attempt,
                    avoid=attempt.failed,
                ) as member,
            ):
                limit = deadline.within(config.timeout_s)
                asked.add(member)
                reply = await member.client.call(RENDER, call, limit)
                if not any(_has_handles(request) for request in reply.requests):
                    asked.discard(member)
                if len(reply.requests) != 1 and (admitted.endpoint == "chat" or not reply.requests):
                    raise InternalError("a render replica answered too many prompts, or none")
                return [
                    RenderedPrompt(admitted, number, _checked(request, admitted), member)
                    for number, request in enumerate(reply.requests)
                ]
        raise AssertionError

    def _release(self, member: Member, request_id: str) -> None:
        """Let render's store forget the pixels, those of a reply that never came too."""
        call = ReleaseCall(request_ids=[request_id])
        self._janitor.finish(member.client.call(RENDER_RELEASE, call, Deadline.after(_RELEASE_S)))

    def _takes_handles(self) -> bool:
        """Foreign encoders cannot fetch from render's store: they are sent pixels inline."""
        encoders = [m for m in self._pool.members() if m.role in ENCODES]
        return all(member.native for member in encoders)


def _has_handles(request: GenerateRequest) -> bool:
    return request.features is not None and request.features.kwargs_handles is not None


def _checked(request: GenerateRequest, admitted: Admitted) -> GenerateRequest:
    """The request as workers get it.

    Nothing remains of what the client said about transfers. Stop strings are left out: the
    derenderer matches them, so that workers need no tokenizer.
    """
    params = request.sampling_params
    extra = {k: v for k, v in (params.extra_args or {}).items() if k not in _TRANSFER_PARAMS}
    return msgspec.structs.replace(
        request,
        request_id=request.request_id or admitted.internal_id,
        sampling_params=msgspec.structs.replace(
            reproducible(params), extra_args=extra or None, stop=None
        ),
        ec_transfer_params=None,
        kv_transfer_params=None,
        stream=True,
    )


def reproducible(params: SamplingParams) -> SamplingParams:
    """With a seed, so that another replica draws what this one would have drawn."""
    if params.greedy or params.effective_seed is not None:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(31))
