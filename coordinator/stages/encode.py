"""Items become embeddings in the stores of encode replicas, each of them once.

An item that the directory knows is not encoded; one that another request is having encoded is
waited for. What is left goes to the replica that the routing policy gives for its hash.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from coordinator.calls import at_replica
from coordinator.concurrency import together
from coordinator.config import CoordinatorConfig
from coordinator.directory import Directory, ItemKey
from coordinator.receipt import How
from coordinator.replicas import Member, ReplicaPool
from coordinator.retry import Attempt, Retries
from coordinator.state import Encoded, RenderedPrompt
from coordinator.topology import Plan
from protocol.errors import InternalError, TransferError, TriptychError
from protocol.features import ItemRef
from protocol.rpc import ENCODE, EncodeCall, EncodeItem
from protocol.rpc import Encoded as EncodeReply
from serving.single_flight import SingleFlight

_PIXELS_GONE = frozenset({"missing", "expired"})
"""Another encode replica would not find the pixels either: they must be rendered again."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one call for one item gave; shared by all requests that wait for it."""

    member: Member | None
    reply: EncodeReply | None
    error: TriptychError | None


class EncodeStage:
    """RenderedPrompt -> Encoded."""

    def __init__(
        self,
        pool: ReplicaPool,
        directory: Directory,
        retries: Retries,
        config: CoordinatorConfig,
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._retries = retries
        self._config = config
        self._flights: SingleFlight[ItemKey, _Outcome] = SingleFlight()

    async def run(
        self, prompt: RenderedPrompt, plan: Plan, known: Encoded, failed: set[str]
    ) -> None:
        """Have the distinct items of a prompt encoded that are not known, at once.

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
        wanted = [item for item in distinct.values() if item.mm_hash not in known.holders]
        missing = []
        for item in wanted:
            if self._held(self._key(prompt, plan, item), known, failed):
                prompt.receipt.items[item.mm_hash] = "held"
            else:
                missing.append(item)
        await together(self._item(prompt, plan, item, known, failed) for item in missing)

    def lost(self, prompt: RenderedPrompt, plan: Plan, mm_hash: str, holder: str) -> None:
        """A prefill replica did not find the item where it was said to be."""
        salt = prompt.request.cache_salt or ""
        self._directory.forget(ItemKey(plan.cohort, salt, mm_hash), holder)

    def _held(self, key: ItemKey, known: Encoded, failed: set[str]) -> bool:
        """Take the item from the directory, if its holder is well."""
        held = self._directory.fresh(key)
        if held is None or held.holder in failed:
            return False
        member = self._pool.member(held.holder)
        if member is None or member.status is None:
            return False
        known.add(key.mm_hash, member, held.item, held.foreign)
        return True

    async def _item(
        self,
        prompt: RenderedPrompt,
        plan: Plan,
        item: ItemRef,
        known: Encoded,
        failed: set[str],
    ) -> None:
        key = self._key(prompt, plan, item)
        config = self._config.encode
        for attempt in self._retries.attempts(
            "encode", config.attempts, prompt.deadline, set(failed), prompt.receipt
        ):
            async with attempt:
                leading = key not in self._flights
                avoid = frozenset(attempt.failed)
                encode = functools.partial(self._encode, prompt, plan, item, key, avoid)
                outcome = await self._flights.run(key, encode)
                self._take(outcome, attempt, key, known, leading=leading)
                reused = outcome.reply is not None and outcome.reply.reused == [True]
                prompt.receipt.items[item.mm_hash] = _how(
                    leading=leading, reused=reused, before=item.mm_hash in prompt.receipt.items
                )
                return

    def _take(
        self, outcome: _Outcome, attempt: Attempt, key: ItemKey, known: Encoded, *, leading: bool
    ) -> None:
        member, reply = outcome.member, outcome.reply
        if member is not None:
            attempt.at(member)
        if outcome.error is not None:
            if not leading:
                attempt.costless()
            elif isinstance(outcome.error, TransferError) and outcome.error.kind in _PIXELS_GONE:
                attempt.last = True
            raise outcome.error
        if member is None or reply is None:
            raise InternalError("an encode call ended without an answer", stage="encode")
        items = {found.mm_hash: found for found in reply.items}
        foreign = (reply.foreign or {}).get(key.mm_hash)
        known.add(key.mm_hash, member, items.get(key.mm_hash), foreign)

    async def _encode(
        self,
        prompt: RenderedPrompt,
        plan: Plan,
        item: ItemRef,
        key: ItemKey,
        avoid: frozenset[str],
    ) -> _Outcome:
        """One call, made for every request that waits for the item."""
        lease_s = self._config.embedding_lease_s
        call = EncodeCall(
            prompt.request.request_id or prompt.admitted.request_id,
            [
                EncodeItem(
                    item.mm_hash,
                    item.modality,
                    item.placeholder.rows,
                    item.handle,
                    text=item.kwargs,
                )
            ],
            key.salt,
            lease_s,
        )

        def suits(member: Member) -> bool:
            return plan.suits(member) and (member.native or item.kwargs is not None)

        member: Member | None = None
        try:
            async with at_replica(
                self._pool,
                "encode",
                "encode",
                prompt.receipt,
                prompt.deadline,
                suits=suits,
                avoid=avoid,
                key=item.mm_hash,
                prefer=self._directory.holder(key),
            ) as member:
                limit = prompt.deadline.within(self._config.encode.timeout_s)
                reply = await member.client.call(ENCODE, call, limit)
                _check(reply, item)
        except TriptychError as error:
            if error.stage is None:
                error.stage = "encode"
            return _Outcome(member, None, error)
        found = next((held for held in reply.items if held.mm_hash == item.mm_hash), None)
        foreign = (reply.foreign or {}).get(item.mm_hash)
        self._directory.put(key, member.id, found, foreign, lease_s)
        return _Outcome(member, reply, None)

    def _key(self, prompt: RenderedPrompt, plan: Plan, item: ItemRef) -> ItemKey:
        return ItemKey(plan.cohort, prompt.request.cache_salt or "", item.mm_hash)


def _how(*, leading: bool, reused: bool, before: bool) -> How:
    if not leading:
        return "shared"
    if reused:
        return "held"
    return "encoded_again" if before else "encoded"


def _check(reply: EncodeReply, item: ItemRef) -> None:
    """A replica that answers about something else is not believed.

    Raises:
        InternalError: names the item.
    """
    hashes = {found.mm_hash for found in reply.items} | (reply.foreign or {}).keys()
    rows = [found.shape[0] for found in reply.items if found.shape]
    if item.mm_hash not in hashes or any(count != item.placeholder.rows for count in rows):
        raise InternalError(
            "an encode replica answered with another item than asked",
            None,
            "encode",
            (item.mm_hash,),
        )
