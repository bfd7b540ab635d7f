"""Turning tokens back into text: what the coordinator asks of a derenderer.

`render` implements it, `deploy` injects it; the coordinator imports neither transformers nor
torch through it. An object lives as long as its request, so its cost is linear in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from protocol.generate import FinishReason
from protocol.openai import ChatCompletionRequest, CompletionRequest, TokenTextLogprob
from protocol.rpc import TokenDelta


class DerenderedDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What new tokens of one choice add to the answer.

    One is made per token and holds no reference back, so the collector need not look at it.

    Attributes:
        content: text for the reader, "" where none is complete yet.
        reasoning: text of the model's reasoning.
        tool_calls: OpenAI `delta.tool_calls` entries.
        logprobs: an entry per token, where asked for.
        token_ids: the tokens that this delta is about.
        finish_reason, stop_reason: set in the last one.
        stopped: a stop string matched here: the rest of the choice must be aborted.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    logprobs: list[TokenTextLogprob] | None = None
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stopped: bool = False


class ChoiceDerenderer(Protocol):
    """The state of one choice of one request."""

    def push(self, delta: TokenDelta) -> DerenderedDelta:
        """Take new tokens in order. After `finish_reason` or `stopped` nothing may be pushed."""
        ...


class Derenderer(Protocol):
    """Makes the per-choice objects; safe to use from one event loop."""

    def chat(
        self, request: ChatCompletionRequest, prompt_token_ids: Sequence[int]
    ) -> ChoiceDerenderer:
        """For one choice of a chat request."""
        ...

    def completion(
        self, request: CompletionRequest, prompt_token_ids: Sequence[int]
    ) -> ChoiceDerenderer:
        """For one choice of a completion request."""
        ...
