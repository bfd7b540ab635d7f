"""Items become embeddings in the stores of encode replicas."""

from __future__ import annotations

from coordinator.concurrency import together
from coordinator.config import CoordinatorConfig
from coordinator.replicas import Member, ReplicaPool
from coordinator.retry import Retries
from coordinator.state import Encoded, RenderedPrompt
from coordinator.topology import Plan
from protocol.errors import InternalError
from protocol.features import ItemRef
from protocol.rpc import ENCODE, EncodeCall, EncodeItem
from protocol.rpc import Encoded as EncodeReply


class EncodeStage:
    """RenderedPrompt -> Encoded."""

    def __init__(self, pool: ReplicaPool, retries: Retries, config: CoordinatorConfig) -> None:
        self._pool = pool
        self._retries = retries
        self._config = config

    async def run(
        self, prompt: RenderedPrompt, plan: Plan, known: Encoded, failed: set[str]
    ) -> None:
        """Encode the distinct items of a prompt that are not known, at once, on several replicas.

        Args:
            prompt: whose items.
            plan: the cohort.
            known: added to as items are encoded, so that a failure keeps its siblings.
            failed: ids of replicas to avoid.

        Raises:
            TransferError: the pixels could not be fetched.
            TriptychError: nobody could encode an item.
        """
        distinct = {item.mm_hash: item for item in prompt.media}
        await together(
            self._encode(prompt, plan, item, known, failed)
            for item in distinct.values()
            if item.mm_hash not in known.holders
        )

    async def _encode(
        self,
        prompt: RenderedPrompt,
        plan: Plan,
        item: ItemRef,
        known: Encoded,
        failed: set[str],
    ) -> None:
        call = EncodeCall(
            prompt.request.request_id or prompt.admitted.request_id,
            [
                EncodeItem(
                    item.mm_hash, item.modality, item.placeholder.rows, item.handle,
                    text=item.kwargs,
                )
            ],
            prompt.request.cache_salt or "",
            self._config.embedding_lease_s,
        )  # fmt: skip
        config = self._config.encode

        def suits(member: Member) -> bool:
            return plan.suits(member) and (member.native or item.kwargs is not None)

        for attempt in self._retries.attempts(
            "encode", config.attempts, prompt.deadline, set(failed)
        ):
            async with (
                attempt,
                self._pool.lease(
                    "encode", prompt.deadline, suits=suits, avoid=attempt.failed, key=item.mm_hash
                ) as member,
            ):
                attempt.at(member)
                limit = prompt.deadline.within(config.timeout_s)
                reply = await member.client.call(ENCODE, call, limit)
                _check(reply, item)
                known.items.update({found.mm_hash: found for found in reply.items})
                known.foreign.update(reply.foreign or {})
                known.holders[item.mm_hash] = member
                return


def _check(reply: EncodeReply, item: ItemRef) -> None:
    """A replica that answers about something else is not believed.

    Raises:
        InternalError: names the item.
    """
    hashes = {found.mm_hash for found in reply.items} | (reply.foreign or {}).keys()
    rows = [found.shape[0] for found in reply.items if found.shape]
    if item.mm_hash not in hashes or any(count != item.placeholder.rows for count in rows):
        raise InternalError(
            "an encode replica answered with another item than asked", None, "encode",
            (item.mm_hash,),
        )  # fmt: skip
