"""Runs one prompt through encode, prefill and decode, and goes on elsewhere when a stage fails.

One loop per prompt. A try keeps what earlier ones found out: embeddings that are still there,
replicas that failed, tokens that the client has. See docs/architecture.md for the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec

from coordinator.calls import at_replica
from coordinator.config import CoordinatorConfig
from coordinator.progress import Progress
from coordinator.replicas import Member, ReplicaPool
from coordinator.retry import Attempt, Retries
from coordinator.stages.decode import DecodeStage
from coordinator.stages.encode import EncodeStage
from coordinator.stages.prefill import PrefillStage, metadata_only
from coordinator.stages.render import Rendering
from coordinator.state import Encoded, Prefilled, RenderedPrompt
from coordinator.topology import Plan, choose_plan
from protocol.errors import TransferError
from protocol.generate import GenerateRequest
from protocol.replica import Role
from protocol.rpc import TokenDelta

_TRANSFERS_BEFORE_PIXELS = 2
"""Failed fetches of embeddings after which prefill is sent the pixels instead."""

_PEER_FAULTS = frozenset({"peer_unreachable", "transport_failed", "invalid_content"})


@dataclass(slots=True)
class _Course:
    """What the tries of one prompt have found out.

    Attributes:
        prompt: with the pixels as last rendered.
        progress: tokens given to the client.
        encoded: embeddings that are known to be there.
        failed: ids of replicas that failed this prompt.
        transfers: fetches of embeddings that failed.
    """

    rendering: Rendering
    prompt: RenderedPrompt
    progress: Progress
    encoded: Encoded = field(default_factory=Encoded)
    failed: set[str] = field(default_factory=set)
    transfers: int = 0

    @property
    def sends_pixels(self) -> bool:
        return self.transfers >= _TRANSFERS_BEFORE_PIXELS

    async def lose_pixels(self) -> None:
        self.prompt = await self.rendering.again(self.prompt)


class Pipeline:
    """RenderedPrompt -> TokenDelta stream."""

    def __init__(
        self,
        pool: ReplicaPool,
        encode: EncodeStage,
        prefill: PrefillStage,
        decode: DecodeStage,
        retries: Retries,
        config: CoordinatorConfig,
    ) -> None:
        self._pool = pool
        self._encode = encode
        self._prefill = prefill
        self._decode = decode
        self._retries = retries
        self._config = config

    async def tokens(
        self, rendering: Rendering, prompt: RenderedPrompt
    ) -> AsyncGenerator[TokenDelta, None]:
        """The tokens of every choice, none twice and none lost, whatever fails on the way.

        Raises:
            TriptychError: the request is at fault, or no try succeeded.
        """
        course = _Course(rendering, prompt, Progress(prompt.request.sampling_params.n))
        attempts = self._config.decode.attempts + self._config.prefill.attempts
        for attempt in self._retries.attempts(
            "decode", attempts, prompt.deadline, course.failed, prompt.receipt
        ):
            async with attempt, contextlib.aclosing(self._try(course, attempt)) as deltas:
                async for delta in deltas:
                    fresh = course.progress.take(delta)
                    if fresh is not None:
                        prompt.receipt.token()
                        prompt.receipt.completion_tokens += len(fresh.token_ids)
                        yield fresh
                return

    async def _try(self, course: _Course, attempt: Attempt) -> AsyncGenerator[TokenDelta, None]:
        prompt = course.prompt
        media = bool(prompt.media)
        wait = prompt.deadline.within(self._config.stage_wait_s)
        plan = await choose_plan(self._pool, wait, media=media)
        prompt.receipt.topology = plan.kind
        resumed = course.progress.begin()
        if plan.kind == "all":
            prompt.receipt.items.update({item.mm_hash: "local" for item in prompt.media})
            request = msgspec.structs.replace(prompt.request, resume_token_ids=resumed or None)
            deltas = self._generate("all", plan, request, course, attempt)
        else:
            request = await self._embedded(course, plan, resumed)
            if plan.kind == "fused":
                deltas = self._generate("prefill_decode", plan, request, course, attempt)
            else:
                deltas = self._split(plan, request, course, attempt)
        async with contextlib.aclosing(deltas):
            async for delta in deltas:
                yield delta

    async def _embedded(self, course: _Course, plan: Plan, resumed: list[int]) -> GenerateRequest:
        """The request that a prefill is sent: with descriptors, or with pixels as a last resort."""
        prompt = course.prompt
        if course.sends_pixels:
            prompt.receipt.items.update({item.mm_hash: "pixels" for item in prompt.media})
            return msgspec.structs.replace(prompt.request, resume_token_ids=resumed or None)
        if prompt.media:
            try:
                await self._encode.run(prompt, plan, course.encoded, course.failed)
            except TransferError:
                await course.lose_pixels()
                await self._encode.run(course.prompt, plan, course.encoded, course.failed)
        found = course.encoded.items.values()
        prompt.receipt.nbytes = sum(item.nbytes for item in found)
        prompt.receipt.transports.update(name for item in found for name in item.transports[:1])
        return metadata_only(prompt.request, course.encoded, resumed)

    def _lose_embeddings(self, course: _Course, plan: Plan, error: TransferError) -> None:
        """Forget the items that could not be fetched; a holder that is at fault is avoided."""
        course.transfers += 1
        for mm_hash in error.items or tuple(course.encoded.holders):
            holder = course.encoded.drop(mm_hash)
            if holder is not None:
                self._encode.lost(course.prompt, plan, mm_hash, holder.id)
                if error.kind in _PEER_FAULTS:
                    course.failed.add(holder.id)

    async def _generate(
        self,
        role: Role,
        plan: Plan,
        request: GenerateRequest,
        course: _Course,
        attempt: Attempt,
    ) -> AsyncGenerator[TokenDelta, None]:
        """Prefill and decode on one replica."""
        deadline = course.prompt.deadline

        def suits(member: Member) -> bool:
            return plan.suits(member) and _can_see(member, course, role)

        stage = "decode" if course.progress.started else "prefill"
        async with at_replica(
            self._pool,
            role,
            stage,
            course.prompt.receipt,
            deadline,
            attempt=attempt,
            suits=suits,
            avoid=course.failed,
        ) as member:
            deltas = self._decode.run(member, request, deadline, course.progress.open)
            try:
                async with contextlib.aclosing(deltas):
                    async for delta in deltas:
                        yield delta
            except TransferError as error:
                attempt.blameless()
                if role == "all" or course.sends_pixels:
                    await course.lose_pixels()
                else:
                    self._lose_embeddings(course, plan, error)
                raise

    async def _split(
        self, plan: Plan, request: GenerateRequest, course: _Course, attempt: Attempt
    ) -> AsyncGenerator[TokenDelta, None]:
        """Prefill on one replica, decode on another."""
        prefilled = await self._prefilled(plan, request, course, attempt)
        handed_over = prefilled.finished
        try:
            for delta in prefilled.deltas:
                yield delta
            if prefilled.finished:
                return
            deadline = course.prompt.deadline
            async with at_replica(
                self._pool,
                "decode",
                "decode",
                course.prompt.receipt,
                deadline,
                attempt=attempt,
                suits=plan.suits,
                avoid=course.failed,
            ) as member:
                deltas = self._decode.run(member, prefilled.request, deadline, course.progress.open)
                async with contextlib.aclosing(deltas):
                    async for delta in deltas:
                        handed_over = True
                        yield delta
        except TransferError as error:
            attempt.blameless()
            if error.kind in _PEER_FAULTS:
                course.failed.add(prefilled.holder.id)
            raise
        finally:
            if not handed_over:
                self._prefill.release(prefilled)

    async def _prefilled(
        self, plan: Plan, request: GenerateRequest, course: _Course, attempt: Attempt
    ) -> Prefilled:
        deadline = course.prompt.deadline

        def suits(member: Member) -> bool:
            return plan.suits(member) and _can_see(member, course, "prefill")

        async with at_replica(
            self._pool,
            "prefill",
            "prefill",
            course.prompt.receipt,
            deadline,
            attempt=attempt,
            suits=suits,
            avoid=course.failed,
        ) as member:
            try:
                return await self._prefill.run(member, plan, request, deadline)
            except TransferError as error:
                attempt.blameless()
                if course.sends_pixels:
                    await course.lose_pixels()
                else:
                    self._lose_embeddings(course, plan, error)
                raise


def _can_see(member: Member, course: _Course, role: Role) -> bool:
    """Whether the member can take the request as it will be sent: pixels need a vision tower."""
    if not course.prompt.media or (role != "all" and not course.sends_pixels):
        return True
    inline = all(item.kwargs is not None for item in course.prompt.media)
    return member.replica.has_vision or (not member.native and inline)
