"""Runs one prompt through encode, prefill and decode, and goes on elsewhere when a stage fails.

One loop per prompt. A try keeps what earlier ones found out: embeddings that are still there,
replicas that failed, tokens that the client has. See docs/architecture.md for the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import msgspec

from coordinator.calls import at_replica
from coordinator.concurrency import StopStream, next_of
from coordinator.config import CoordinatorConfig
from coordinator.member import Member
from coordinator.progress import Progress
from coordinator.receipt import How
from coordinator.replicas import ReplicaPool
from coordinator.retry import Attempt, Retries
from coordinator.stages.decode import DecodeStage
from coordinator.stages.encode import EncodeStage, Encoding
from coordinator.stages.prefill import PrefillStage, metadata_only
from coordinator.stages.render import Rendering
from coordinator.state import Encoded, Prefilled, RenderedPrompt
from coordinator.topology import Plan, choose_plan
from protocol.errors import InvalidRequest, TransferError, TriptychError, Unavailable
from protocol.generate import GenerateRequest
from protocol.replica import Role
from protocol.rpc import TokenDelta

_TRANSFERS_BEFORE_PIXELS = 2
"""Failed fetches of embeddings after which prefill is sent the pixels instead."""

_TRANSFER_PARAMS = ("ec_transfer_params", "kv_transfer_params")

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
        overlap: whether prefill may be called before everything is encoded.
        encoding: items in work.
        stack: what ends with the prompt.
    """

    rendering: Rendering
    prompt: RenderedPrompt
    progress: Progress
    encoded: Encoded = field(default_factory=Encoded)
    failed: set[str] = field(default_factory=set)
    transfers: int = 0
    overlap: bool = True
    encoding: Encoding | None = None
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

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
        sampling = prompt.request.sampling_params
        progress = Progress(sampling.n, sampling.max_tokens)
        course = _Course(rendering, prompt, progress, overlap=self._config.overlap)
        attempts = self._config.decode.attempts + self._config.prefill.attempts
        async with course.stack:
            for attempt in self._retries.attempts(
                "decode", attempts, prompt.deadline, course.failed, prompt.receipt
            ):
                async with attempt, contextlib.aclosing(self._try(course, attempt)) as deltas:
                    async for delta in deltas:
                        if not progress.open:
                            break  # a replica that does not know when to stop
                        fresh = progress.take(delta)
                        if fresh is not None:
                            prompt.receipt.token()
                            prompt.receipt.completion_tokens += len(fresh.token_ids)
                            yield fresh
                    if progress.open:
                        raise Unavailable("the answer ended too early", stage="decode")
                    return

    async def _try(self, course: _Course, attempt: Attempt) -> AsyncGenerator[TokenDelta, None]:
        prompt = course.prompt
        wait = prompt.deadline.within(self._config.stage_wait_s)
        plan = await choose_plan(self._pool, wait, media=bool(prompt.media))
        prompt.receipt.topology = plan.kind
        resumed = course.progress.begin()
        if plan.kind == "all" or not prompt.media or course.sends_pixels:
            how: How = "local" if plan.kind == "all" else "pixels"
            prompt.receipt.items.update({item.mm_hash: how for item in prompt.media})
            request = msgspec.structs.replace(prompt.request, resume_token_ids=resumed or None)
            deltas = self._run(plan, request, course, attempt)
        else:
            deltas = self._embedded(plan, resumed, course, attempt)
        async with contextlib.aclosing(deltas):
            async for delta in deltas:
                yield delta

    async def _embedded(
        self, plan: Plan, resumed: list[int], course: _Course, attempt: Attempt
    ) -> AsyncGenerator[TokenDelta, None]:
        """Prefill from embeddings; the first token may be waited for while items are in work."""
        encoding = await self._encoding(course, plan)
        try:
            found = await (encoding.announced() if course.overlap else encoding.finished())
            self._note(course, found)
            request = metadata_only(course.prompt.request, found, resumed)
            deltas = self._run(plan, request, course, attempt)
            async with contextlib.aclosing(deltas):
                with contextlib.suppress(StopStream):
                    while True:
                        yield await encoding.alongside(next_of(deltas))
        except TriptychError as error:
            if error is encoding.error:
                attempt.blameless()
                if isinstance(error, TransferError):
                    await course.lose_pixels()
            if error is encoding.error or isinstance(error, TransferError):
                course.overlap = False
            raise

    async def _encoding(self, course: _Course, plan: Plan) -> Encoding:
        """The items in work; what an earlier try began goes on."""
        before = course.encoding
        if before is not None and before.plan == plan and before.error is None and not before.done:
            return before
        encoding = self._encode.begin(
            course.prompt, plan, course.encoded, course.failed, overlap=course.overlap
        )
        course.encoding = await course.stack.enter_async_context(encoding)
        return course.encoding

    def _note(self, course: _Course, found: Encoded) -> None:
        receipt, items = course.prompt.receipt, found.items.values()
        receipt.nbytes = sum(item.nbytes for item in items)
        receipt.transports.update(name for item in items for name in item.transports[:1])

    def _run(
        self, plan: Plan, request: GenerateRequest, course: _Course, attempt: Attempt
    ) -> AsyncGenerator[TokenDelta, None]:
        match plan.kind:
            case "all":
                return self._generate("all", plan, request, course, attempt)
            case "fused":
                return self._generate("prefill_decode", plan, request, course, attempt)
            case "split":
                return self._split(plan, request, course, attempt)

    def _lose_embeddings(self, course: _Course, plan: Plan, error: TransferError) -> None:
        """Forget the items that could not be fetched; a holder that is at fault is avoided."""
        # What was announced may fail, and a lease may end in a queue: that says nothing against
        # fetching embeddings.
        course.transfers += not course.overlap and error.kind != "expired"
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
                with _our_params_are_not_the_clients_fault():
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
                with _our_params_are_not_the_clients_fault():
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
                with _our_params_are_not_the_clients_fault():
                    return await self._prefill.run(member, plan, request, deadline)
            except TransferError as error:
                attempt.blameless()
                if course.sends_pixels:
                    await course.lose_pixels()
                else:
                    self._lose_embeddings(course, plan, error)
                raise


@contextlib.contextmanager
def _our_params_are_not_the_clients_fault() -> Iterator[None]:
    """A replica that refuses a descriptor says that the replica which made it is at fault.

    Raises:
        TransferError: in place of the refusal.
    """
    try:
        yield
    except InvalidRequest as error:
        if (error.param or "").startswith(_TRANSFER_PARAMS):
            raise TransferError(
                error.message, "invalid_content", error.items, error.param, error.stage
            ) from None
        raise


def _can_see(member: Member, course: _Course, role: Role) -> bool:
    """Whether the member can take the request as it will be sent: pixels need a vision tower."""
    if not course.prompt.media or (role != "all" and not course.sends_pixels):
        return True
    inline = all(item.kwargs is not None for item in course.prompt.media)
    return member.replica.has_vision or (not member.native and inline)
