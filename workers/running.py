"""A request that is in the engine: what is known of it, and what the engine says next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.errors import DeadlineExceeded, InternalError, TriptychError
from protocol.generate import FinishReason, Logprobs, Usage
from protocol.rpc import TokenDelta
from protocol.transfer import KvHandoff
from workers.admission import Admitted
from workers.engine import Failed, ItemMissing, Token
from workers.publisher import raise_together
from workers.runner import Prompt
from workers.stream import Expired, Said, WorkStream
from workers.work import Work


@dataclass(slots=True, eq=False)
class Running:
    """A request that is in the engine.

    Attributes:
        loads: a task per item of the prompt.
        open: choices that are not over.
        adopting: whether KV blocks of another replica are being written into ours: nobody may
            free them meanwhile.
        offered: whether our KV blocks were offered to another replica.
        generated: tokens of all choices so far, resumed and handed-over ones included.
    """

    work: Work
    admitted: Admitted
    prompt: Prompt
    handoff: KvHandoff | None
    stream: WorkStream = field(default_factory=WorkStream)
    loads: list[asyncio.Task[None]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    generated: int = 0
    adopting: bool = False
    offered: bool = False

    @property
    def usage(self) -> Usage:
        return Usage.of(len(self.admitted.request.token_ids), self.generated)

    async def read(self) -> list[Said]:
        """What the engine says next; the request's expiry is among it.

        Raises:
            TriptychError: the request failed, or its time is over.
        """
        messages = await self.stream.get()
        for message in messages:
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, Expired):
                raise DeadlineExceeded("the request's time is over")
            if isinstance(message, ItemMissing):
                await self._raise_missing(message.index)
        return messages

    def tokens(self, messages: Sequence[Said]) -> list[TokenDelta]:
        """A delta per choice that has new tokens and is not over; notes which are over now."""
        tokens: dict[int, list[Token]] = {}
        for message in messages:
            if isinstance(message, Token) and message.choice in self.open:
                tokens.setdefault(message.choice, []).append(message)
                if message.finish is not None:
                    self.open.discard(message.choice)
        self.generated += sum(map(len, tokens.values()))
        return [_delta(batch) for batch in tokens.values()]

    def aborted(self) -> list[TokenDelta]:
        """The last deltas of a request that somebody else ended."""
        return [TokenDelta(index=c, finish_reason="abort") for c in sorted(self.open)]

    async def _raise_missing(self, index: int) -> None:
        """Raise the failure of an item, naming all items that have failed by now."""
        await asyncio.wait([self.loads[index]])
        results = [load.exception() for load in self.loads if load.done() and not load.cancelled()]
        try:
            raise_together([error for error in results if error is not None])
        except TriptychError as error:
            error.stage = error.stage or "prefill"
            raise
        raise InternalError("an item is missing and nobody knows why")


def _delta(tokens: list[Token]) -> TokenDelta:
    entries = [token.logprob for token in tokens if token.logprob is not None]
    reason: FinishReason | None = None
    detail: int | str | None = None
    if tokens[-1].finish is not None:
        reason, detail = tokens[-1].finish
    return TokenDelta(
        index=tokens[0].choice,
        token_ids=[token.token for token in tokens],
        logprobs=Logprobs(entries) if entries else None,
        finish_reason=reason,
        stop_reason=detail,
    )
