"""One item at one encode replica: who encodes it, and the call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from coordinator.calls import at_replica
from coordinator.config import CoordinatorConfig
from coordinator.directory import Directory, ItemKey
from coordinator.member import Member
from coordinator.replicas import ReplicaPool
from coordinator.routing.consistent_hash import home
from coordinator.state import RenderedPrompt
from coordinator.topology import Plan
from protocol.errors import DeadlineExceeded, InternalError, TriptychError
from protocol.features import ItemRef
from protocol.rpc import (
    ENCODE,
    RESERVE,
    EncodeCall,
    Encoded,
    EncodeItem,
    Reservation,
    ReserveCall,
    ReserveItem,
)
from protocol.transfer import EcItem

_RESERVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """An item that a prompt needs.

    Attributes:
        avoid: ids of replicas that failed it.
        announce: whether a descriptor is wanted before the embedding is there.
    """

    prompt: RenderedPrompt
    plan: Plan
    item: ItemRef
    avoid: Collection[str] = ()
    announce: bool = False

    @property
    def key(self) -> ItemKey:
        salt = self.prompt.request.cache_salt or ""
        return ItemKey(self.plan.cohort, salt, self.item.mm_hash)

    @property
    def request_id(self) -> str:
        return self.prompt.request.request_id or self.prompt.admitted.internal_id

    def suits(self, member: Member) -> bool:
        """Whether the member can take it: a foreign one takes pixels inline only."""
        return self.plan.suits(member) and (member.native or self.item.kwargs is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one item; shared by all requests that wait for it.

    Attributes:
        member: where; None where nobody could be had.
        item: the descriptor, None of a foreign encoder or after an error.
        foreign: a foreign encoder's entry.
        reused: the replica had it already.
        error: what it failed with.
    """

    member: Member | None = None
    item: EcItem | None = None
    foreign: Any = None
    reused: bool = False
    error: TriptychError | None = None


class ItemEncoder:
    """Asks who encodes an item, announces where it will be, has it encoded."""

    def __init__(self, pool: ReplicaPool, directory: Directory, config: CoordinatorConfig) -> None:
        self._pool = pool
        self._directory = directory
        self._config = config
        self._expected: dict[ItemKey, Outcome] = {}
        self._listeners: defaultdict[ItemKey, list[Callable[[Outcome], None]]] = defaultdict(list)

    @contextmanager
    def listening(self, key: ItemKey, listener: Callable[[Outcome], None]) -> Iterator[None]:
        """Have the listener called once the item in work has a descriptor; at once if it has."""
        if key in self._expected:
            listener(self._expected[key])
        self._listeners[key].append(listener)
        try:
            yield
        finally:
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    async def run(self, wanted: Wanted) -> Outcome:
        """Encode; errors are part of the outcome, so that all who wait can share it."""
        try:
            return await self._run(wanted)
        finally:
            self._expected.pop(wanted.key, None)

    async def _run(self, wanted: Wanted) -> Outcome:
        with ExitStack() as intent:
            return await self._run_intending(wanted, intent)

    async def _run_intending(self, wanted: Wanted, intent: ExitStack) -> Outcome:
        asked = await self._ask(wanted, intent)
        if asked.item is not None and asked.reused:
            return asked
        if asked.item is not None:
            self._announce(wanted.key, asked)
        member: Member | None = None
        try:
            async with at_replica(
                self._pool,
                "encode",
                "encode",
                wanted.prompt.receipt,
                wanted.prompt.deadline,
                suits=wanted.suits,
                avoid=wanted.avoid,
                key=wanted.item.mm_hash,
                prefer=asked.member.id if asked.member is not None else None,
            ) as member:
                intent.close()
                reply = await member.client.call(
                    ENCODE,
                    self._call(wanted),
                    wanted.prompt.deadline.within(self._config.encode.timeout_s),
                )
                _check(reply, wanted.item)
        except TriptychError as error:
            error.stage = error.stage or "encode"
            return Outcome(member, error=error)
        return self._remember(wanted, member, reply)

    async def _ask(self, wanted: Wanted, intent: ExitStack) -> Outcome:
        """Where the item is, or shall be encoded: `item` is its descriptor, `reused` if it is."""
        key = wanted.key
        last = self._directory.holder(key)
        holder = self._pool.member(last) if last is not None and last not in wanted.avoid else None
        if holder is not None and holder.ready and holder.native:
            answer = await self._reserve(holder, wanted, "")
            if answer is not None and answer.state == "held":
                return self._found(wanted, holder, answer)
        candidates = [
            member
            for member in self._pool.members("encode")
            if member.ready and wanted.suits(member) and member.id not in wanted.avoid
        ]
        native = [member for member in candidates if member.native]
        if not native:
            return Outcome()
        at_home = home(native, wanted.item.mm_hash)
        chosen = self._pool.choose("encode", candidates, wanted.item.mm_hash)
        intent.enter_context(chosen.intend())
        delegate = chosen.id if chosen is not at_home else ""
        answer = await self._reserve(at_home, wanted, delegate)
        if answer is None:
            return Outcome(chosen)
        if answer.state != "elsewhere":
            return self._found(wanted, at_home, answer)
        there = self._pool.member(answer.holder) or chosen
        if there.native and (wanted.announce or there is not chosen):
            answer = await self._reserve(there, wanted, "")
            if answer is not None:
                return self._found(wanted, there, answer)
        return Outcome(there)

    async def _reserve(self, member: Member, wanted: Wanted, delegate: str) -> Reservation | None:
        """The replica's answer, or None where it gives none."""
        call = ReserveCall(
            wanted.request_id,
            [ReserveItem(wanted.item.mm_hash, wanted.item.placeholder.rows)],
            wanted.key.salt,
            self._config.embedding_lease_s,
            delegate,
            list(wanted.avoid),
        )
        deadline = wanted.prompt.deadline.within(_RESERVE_S)
        try:
            reply = await member.client.call(RESERVE, call, deadline)
        except DeadlineExceeded:
            return None  # the question's limit is short: no word against a busy replica
        except TriptychError as error:
            self._pool.answered(member, error)
            return None
        answer = reply.items[0] if len(reply.items) == 1 else None
        if answer is None or answer.item is None:
            return answer
        right = answer.item.mm_hash == wanted.item.mm_hash
        rows = answer.item.shape[:1] == (wanted.item.placeholder.rows,)
        return answer if right and rows else None

    def _found(self, wanted: Wanted, member: Member, answer: Reservation) -> Outcome:
        held = answer.state == "held"
        if held and answer.item is not None:
            lease_s = self._config.embedding_lease_s
            self._directory.put(wanted.key, member.id, answer.item, None, lease_s)
        return Outcome(member, answer.item, reused=held)

    def _announce(self, key: ItemKey, outcome: Outcome) -> None:
        self._expected[key] = outcome
        for listener in list(self._listeners.get(key, ())):
            listener(outcome)

    def _call(self, wanted: Wanted) -> EncodeCall:
        item = wanted.item
        one = EncodeItem(
            item.mm_hash, item.modality, item.placeholder.rows, item.handle, text=item.kwargs
        )
        lease_s = self._config.embedding_lease_s
        return EncodeCall(wanted.request_id, [one], wanted.key.salt, lease_s)

    def _remember(self, wanted: Wanted, member: Member, reply: Encoded) -> Outcome:
        mm_hash = wanted.item.mm_hash
        item = next((found for found in reply.items if found.mm_hash == mm_hash), None)
        foreign = (reply.foreign or {}).get(mm_hash)
        lease_s = self._config.embedding_lease_s
        self._directory.put(wanted.key, member.id, item, foreign, lease_s)
        return Outcome(member, item, foreign, reply.reused == [True])


def _check(reply: Encoded, item: ItemRef) -> None:
    """A replica that answers about something else is not believed.

    Raises:
        InternalError: names the item.
    """
    hashes = {found.mm_hash for found in reply.items} | (reply.foreign or {}).keys()
    rows = [found.shape[0] for found in reply.items if found.shape]
    if item.mm_hash not in hashes or any(count != item.placeholder.rows for count in rows):
        message = "an encode replica answered with another item than asked"
        raise InternalError(message, None, "encode", (item.mm_hash,))
