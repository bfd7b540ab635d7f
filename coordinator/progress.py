"""What a request has given its client already, so that it can go on elsewhere."""

from __future__ import annotations

import msgspec

from protocol.errors import InternalError
from protocol.generate import Logprobs
from protocol.rpc import TokenDelta


class Progress:
    """Tokens per choice, over all tries of one request.

    A request with one choice is resumed: the next try is told the tokens and goes on after them.
    With several choices the next try starts from the beginning and what was given already is
    swallowed, after checking that it is the same.

    Args:
        choices: how many.
        limit: most tokens of a choice, None where only the replica knows.
    """

    def __init__(self, choices: int, limit: int | None = None) -> None:
        self._limit = limit
        self._given: list[list[int]] = [[] for _ in range(choices)]
        self._replayed = [0] * choices
        self.open = set(range(choices))

    @property
    def started(self) -> bool:
        """Whether the client has seen anything."""
        return any(self._given)

    def begin(self) -> list[int]:
        """Start another try; returns the tokens it must resume after."""
        if len(self._given) == 1:
            self._replayed = [len(self._given[0])]
            return list(self._given[0])
        self._replayed = [0] * len(self._given)
        return []

    def take(self, delta: TokenDelta) -> TokenDelta | None:
        """The part of a delta that is news, or None.

        Raises:
            InternalError: a replayed choice took another course.
        """
        index = delta.index
        if index not in range(len(self._given)):
            raise InternalError("a replica answered for a choice that nobody asked for")
        if index not in self.open:
            return None
        if min(delta.token_ids, default=0) < 0:
            raise InternalError("a replica answered a negative token")
        delta = self._within_limit(delta)
        given, at = self._given[index], self._replayed[index]
        known = given[at : at + len(delta.token_ids)]
        if known != delta.token_ids[: len(known)]:
            raise InternalError("the request could not be continued with the same tokens")
        self._replayed[index] += len(delta.token_ids)
        fresh = delta.token_ids[len(known) :]
        if not fresh and delta.finish_reason is None and delta.usage is None:
            return None
        given.extend(fresh)
        if delta.finish_reason is not None:
            self.open.discard(index)
        if not known:
            return delta
        logprobs = delta.logprobs
        if logprobs is not None:
            logprobs = Logprobs(logprobs.content[len(known) :])
        return msgspec.structs.replace(delta, token_ids=fresh, logprobs=logprobs)

    def _within_limit(self, delta: TokenDelta) -> TokenDelta:
        """The delta, ended where the choice must end: some replica might not."""
        if self._limit is None:
            return delta
        room = self._limit - self._replayed[delta.index]
        if len(delta.token_ids) <= room:
            return delta
        logprobs = delta.logprobs
        if logprobs is not None:
            logprobs = Logprobs(logprobs.content[:room])
        return msgspec.structs.replace(
            delta, token_ids=delta.token_ids[:room], logprobs=logprobs, finish_reason="length"
        )
