"""A prompt and its embeddings become KV blocks and a first token."""

from __future__ import annotations

import asyncio

import msgspec

from coordinator.concurrency import Janitor
from coordinator.config import CoordinatorConfig
from coordinator.member import Member
from coordinator.state import Encoded, Prefilled
from coordinator.topology import Plan
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, InternalError, Unavailable
from protocol.generate import GenerateRequest
from protocol.rpc import KV_RELEASE, PREFILL, ReleaseCall
from protocol.rpc import Prefilled as Reply
from protocol.transfer import KvHandoff, ec_params, parse_kv_handoff

_RELEASE_S = 5.0


def metadata_only(
    request: GenerateRequest, encoded: Encoded, resumed: list[int]
) -> GenerateRequest:
    """What a prefill replica is sent: no pixels, no handles, descriptors of the embeddings."""
    features = request.features
    params = None
    if features is not None:
        features = features.without_kwargs()
        params = {**encoded.foreign}
        if encoded.items:
            params |= ec_params(list(encoded.items.values()))
    return msgspec.structs.replace(
        request, features=features, ec_transfer_params=params, resume_token_ids=resumed or None
    )


class PrefillStage:
    """RenderedPrompt and Encoded -> Prefilled."""

    def __init__(self, janitor: Janitor, config: CoordinatorConfig) -> None:
        self._janitor = janitor
        self._config = config

    async def run(
        self, member: Member, plan: Plan, request: GenerateRequest, deadline: Deadline
    ) -> Prefilled:
        """One try at one replica.

        Raises:
            TriptychError: TransferError names the items whose embeddings did not come.
        """
        limit = deadline.within(self._config.prefill.timeout_s)
        try:
            reply = await member.client.call(PREFILL, request, limit)
        except (asyncio.CancelledError, Unavailable, DeadlineExceeded):
            self._release_unknown(member, request)
            raise
        params = reply.kv_transfer_params
        key = ""
        try:
            handoff = parse_kv_handoff(params) if params is not None else None
        except ValueError as error:
            raise InternalError(f"prefill answered a malformed handoff: {error}") from None
        if handoff is not None:
            key = handoff.source.key
        if member.native:
            _check(reply, handoff, request.sampling_params.n)
        return Prefilled(
            plan,
            msgspec.structs.replace(request, kv_transfer_params=params),
            reply.deltas,
            member,
            key,
            params is None,
            reply.usage,
        )

    def _release_unknown(self, member: Member, request: GenerateRequest) -> None:
        """Free the blocks of a reply that never arrived, if there was one."""
        if member.native and request.request_id is not None:
            call = ReleaseCall(request_ids=[request.request_id])
            deadline = Deadline.after(_RELEASE_S)
            self._janitor.finish(member.client.call(KV_RELEASE, call, deadline))

    def release(self, prefilled: Prefilled) -> None:
        """Free KV blocks that no decode replica will fetch."""
        if prefilled.kv_key:
            call = ReleaseCall([prefilled.kv_key])
            deadline = Deadline.after(_RELEASE_S)
            self._janitor.finish(prefilled.holder.client.call(KV_RELEASE, call, deadline))


def _check(reply: Reply, handoff: KvHandoff | None, choices: int) -> None:
    """The tokens that the client gets must be those that decode goes on after.

    Raises:
        InternalError: they are not, or a choice is neither ended nor handed over.
    """
    if handoff is None:
        ended = {delta.index for delta in reply.deltas if delta.finish_reason is not None}
        if reply.kv_transfer_params is None and not ended.issuperset(range(choices)):
            raise InternalError("prefill answered neither an end nor KV blocks", stage="prefill")
        return
    said = {delta.index: tuple(delta.token_ids) for delta in reply.deltas}
    if said != {index: (token,) for index, token in enumerate(handoff.first_tokens)}:
        raise InternalError("prefill answered other tokens than it handed over", stage="prefill")
