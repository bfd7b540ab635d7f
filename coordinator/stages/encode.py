"""Items become embeddings in the stores of encode replicas, each of them once.

An item that the directory knows is not encoded; one that another request is having encoded is
waited for. For the rest the replica that the item's hash belongs to is asked who encodes it
(`stages/item.py`), so that several coordinators agree; pixels follow the answer.

`Encoding` is the work for one prompt. Where prefill shall overlap, it tells where items will be
before they are encoded.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from coordinator.config import CoordinatorConfig
from coordinator.directory import Directory, ItemKey
from coordinator.receipt import How
from coordinator.replicas import ReplicaPool
from coordinator.retry import Attempt, Retries
from coordinator.stages.item import ItemEncoder, Outcome, Wanted
from coordinator.state import Encoded, RenderedPrompt
from coordinator.topology import Plan
from protocol.errors import InternalError, TransferError, TriptychError
from serving.single_flight import SingleFlight

T = TypeVar("T")

_PIXELS_GONE = frozenset({"missing", "expired"})
"""Another encode replica would not find the pixels either: they must be rendered again."""


class EncodeStage:
    """RenderedPrompt -> Encoded."""

    def __init__(
        self,
        pool: ReplicaPool,
        directory: Directory,
        retries: Retries,
        config: CoordinatorConfig,
    ) -> None:
        self.retries = retries
        self.attempts = config.encode.attempts
        self.encoder = ItemEncoder(pool, directory, config)
        self._pool = pool
        self._directory = directory
        self._flights: SingleFlight[ItemKey, Outcome] = SingleFlight()

    def begin(
        self,
        prompt: RenderedPrompt,
        plan: Plan,
        known: Encoded,
        failed: set[str],
        *,
        overlap: bool,
    ) -> Encoding:
        """Have the distinct items of a prompt encoded that are not known.

        Args:
            prompt: whose items.
            plan: the cohort.
            known: added to as items are encoded, so that a failure keeps its siblings.
            failed: ids of replicas to avoid.
            overlap: whether items are to be announced; one that fails after it was is not tried
                again here, because somebody waits for it where it was announced to be.
        """
        distinct = {item.mm_hash: item for item in prompt.media}
        missing = []
        for item in distinct.values():
            if item.mm_hash in known.holders:
                continue
            wanted = Wanted(prompt, plan, item, frozenset(failed), overlap)
            if self._held(wanted, known, failed):
                prompt.receipt.items[item.mm_hash] = "held"
            else:
                missing.append(wanted)
        return Encoding(self, plan, known, missing)

    def lost(self, prompt: RenderedPrompt, plan: Plan, mm_hash: str, holder: str) -> None:
        """A prefill replica did not find the item where it was said to be."""
        salt = prompt.request.cache_salt or ""
        self._directory.forget(ItemKey(plan.cohort, salt, mm_hash), holder)

    async def item(self, wanted: Wanted) -> tuple[Outcome, bool]:
        """One call for one item, shared with whoever wants it at the same time.

        Returns:
            What came of it, and whether this caller was the first to want it.
        """
        leading = wanted.key not in self._flights
        run = functools.partial(self.encoder.run, wanted)
        return await self._flights.run(wanted.key, run), leading

    def _held(self, wanted: Wanted, known: Encoded, failed: set[str]) -> bool:
        """Take the item from the directory, if its holder is well."""
        held = self._directory.fresh(wanted.key)
        if held is None or held.holder in failed:
            return False
        member = self._pool.member(held.holder)
        if member is None or member.status is None:
            return False
        known.add(wanted.item.mm_hash, member, held.item, held.foreign)
        return True


class Encoding:
    """The items of one prompt that are in work; entered once, leaving it gives them up.

    Attributes:
        plan: the cohort.
        error: what an item failed with, once one did.
    """

    def __init__(
        self, stage: EncodeStage, plan: Plan, known: Encoded, missing: list[Wanted]
    ) -> None:
        self.plan = plan
        self.error: TriptychError | None = None
        self._stage = stage
        self._known = known
        self._missing = missing
        self._expected: dict[str, Outcome] = {}
        self._progress = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def done(self) -> bool:
        """Whether nothing is in work."""
        return all(task.done() for task in self._tasks)

    async def __aenter__(self) -> Encoding:
        self._tasks = {asyncio.create_task(self._item(wanted)) for wanted in self._missing}
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finished(self) -> Encoded:
        """Every item, encoded.

        Raises:
            TransferError: the pixels could not be fetched.
            TriptychError: nobody could encode an item.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        self._raise()
        return self._known

    async def announced(self) -> Encoded:
        """Every item, as soon as it is known where it is or will be; raises as `finished`."""
        while self.error is None and not all(
            wanted.item.mm_hash in self._known.holders or wanted.item.mm_hash in self._expected
            for wanted in self._missing
        ):
            await self._progress.wait()
            self._progress.clear()
        self._raise()
        known = Encoded(
            dict(self._known.items), dict(self._known.foreign), dict(self._known.holders)
        )
        for mm_hash, outcome in self._expected.items():
            if mm_hash not in known.holders and outcome.member is not None:
                known.add(mm_hash, outcome.member, outcome.item, None)
        return known

    async def alongside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that may wait for items; an item that fails ends it.

        Raises:
            TriptychError: of the work, or of the item (then it is `error`).
        """
        if self.done:
            return await work
        task = asyncio.create_task(work)
        try:
            while not task.done():
                running = {one for one in self._tasks if not one.done()}
                await asyncio.wait({task, *running}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    self._raise()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()  # a fault of ours

    async def _item(self, wanted: Wanted) -> None:
        try:
            await self._attempts(wanted)
        except TriptychError as error:
            self.error = self.error or error
            raise
        finally:
            self._progress.set()

    async def _attempts(self, wanted: Wanted) -> None:
        prompt, mm_hash = wanted.prompt, wanted.item.mm_hash
        for attempt in self._stage.retries.attempts(
            "encode", self._stage.attempts, prompt.deadline, set(wanted.avoid), prompt.receipt
        ):
            async with attempt:
                now = Wanted(
                    prompt, wanted.plan, wanted.item, frozenset(attempt.failed), wanted.announce
                )
                announce = functools.partial(self._announce, mm_hash)
                with self._stage.encoder.listening(now.key, announce):
                    outcome, leading = await self._stage.item(now)
                self._take(outcome, attempt, wanted, leading=leading)
                return

    def _announce(self, mm_hash: str, outcome: Outcome) -> None:
        self._expected.setdefault(mm_hash, outcome)
        self._progress.set()

    def _take(self, outcome: Outcome, attempt: Attempt, wanted: Wanted, *, leading: bool) -> None:
        mm_hash, items = wanted.item.mm_hash, wanted.prompt.receipt.items
        announced = self._expected.get(mm_hash) if wanted.announce else None
        if outcome.member is not None:
            attempt.at(outcome.member)
        if outcome.error is not None:
            if not leading:
                attempt.costless()
            elif isinstance(outcome.error, TransferError) and outcome.error.kind in _PIXELS_GONE:
                attempt.last = True
            if announced is not None:
                attempt.last = True
            raise outcome.error
        if outcome.member is None:
            raise InternalError("an encode call ended without an answer", stage="encode")
        self._known.add(mm_hash, outcome.member, outcome.item, outcome.foreign)
        items[mm_hash] = _how(leading=leading, reused=outcome.reused, before=mm_hash in items)
        if announced is not None and announced.member is not outcome.member:
            attempt.last = True
            raise TransferError("the item came elsewhere than announced", "missing", (mm_hash,))


def _how(*, leading: bool, reused: bool, before: bool) -> How:
    if not leading:
        return "shared"
    if reused:
        return "held"
    return "encoded_again" if before else "encoded"
