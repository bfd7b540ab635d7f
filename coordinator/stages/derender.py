"""Tokens of all choices become text, through the injected derenderer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec

from protocol.derender import ChoiceDerenderer, DerenderedDelta
from protocol.rpc import TokenDelta


class Derendering:
    """One request's choices and how many tokens they have.

    Attributes:
        completion_tokens: generated so far, over all choices.
    """

    def __init__(self, choices: Sequence[ChoiceDerenderer]) -> None:
        self._choices = choices
        self.completion_tokens = 0

    async def texts(
        self, tokens: AsyncIterator[TokenDelta]
    ) -> AsyncGenerator[tuple[int, DerenderedDelta], None]:
        """(choice, delta) until every choice has ended.

        The caller then closes `tokens`, which aborts what a stop string ended early.
        """
        async with contextlib.aclosing(self.both(tokens)) as pairs:
            async for index, _, text in pairs:
                yield index, text

    async def both(
        self, tokens: AsyncIterator[TokenDelta]
    ) -> AsyncGenerator[tuple[int, TokenDelta, DerenderedDelta], None]:
        """As `texts`, with the tokens beside their text."""
        running = set(range(len(self._choices)))
        async for delta in tokens:
            if delta.index not in running:
                continue
            self.completion_tokens += len(delta.token_ids)
            text = self._choices[delta.index].push(delta)
            if text.stopped and text.finish_reason is None:
                text = msgspec.structs.replace(text, finish_reason="stop")
            yield delta.index, delta, text
            if text.stopped or text.finish_reason is not None:
                running.discard(delta.index)
                if not running:
                    return
