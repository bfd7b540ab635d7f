"""Deltas into the answers of `/inference/v1/generate`: choices, events, usage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tokenizers import Tokenizer

from protocol.generate import (
    FinishReason,
    GenerateChoice,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    Logprobs,
    TokenLogprob,
    Usage,
)
from protocol.rpc import TokenDelta
from workers.text_output import ChoiceDelta, TextOutput

ID_PREFIX = "generate-tokens-"
"""Before the request's id in a response's."""

_VERSION = "default"
"""The one version of weights that a worker has."""


@dataclass(slots=True)
class _Choice:
    output: TextOutput
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Answer:
    """Everything that is said about one request.

    Args:
        request: with its id set.
        model: the name that is answered.
        created: Unix seconds.
        tokenizer: None where the request needs no text.
        stop: ends a choice in the engine when a stop string matched.
    """

    def __init__(
        self,
        request: GenerateRequest,
        model: str,
        created: int,
        tokenizer: Tokenizer | None,
        stop: Callable[[int], None],
    ) -> None:
        self._request = request
        self._model = model
        self._created = created
        self._choices = [
            _Choice(TextOutput(request, tokenizer, lambda index=index: stop(index)))  # type: ignore[misc]
            for index in range(request.sampling_params.n)
        ]
        self._first = True

    @property
    def id(self) -> str:
        return ID_PREFIX + (self._request.request_id or "")

    @property
    def usage(self) -> Usage:
        """Tokens of the answer so far."""
        count = sum(len(choice.token_ids) for choice in self._choices)
        return Usage.of(len(self._request.token_ids), count)

    def add(self, delta: TokenDelta) -> ChoiceDelta | None:
        """Take a delta; None where it says nothing about a choice that is not over."""
        choice = self._choices[delta.index]
        if choice.output.over or not (delta.token_ids or delta.finish_reason):
            return None
        part = choice.output.push(delta)
        choice.token_ids += part.token_ids
        choice.text += part.text or ""
        if part.logprobs is not None:
            choice.logprobs = [*(choice.logprobs or ()), *part.logprobs.content]
        choice.finish_reason, choice.stop_reason = part.finish_reason, part.stop_reason
        return part

    def response(
        self,
        *,
        usage: Usage | None = None,
        kv: dict[str, Any] | None = None,
        ec: dict[str, Any] | None = None,
        unfinished: FinishReason | None = None,
    ) -> GenerateResponse:
        """The whole answer.

        Args:
            usage: if not what the choices hold.
            kv, ec: transfer parameters.
            unfinished: the reason to give for choices that are not over.
        """
        request = self._request
        echo = bool(request.return_token_ids)
        return GenerateResponse(
            request_id=self.id,
            model=self._model,
            created=self._created,
            usage=usage or self.usage,
            choices=[
                self._choice(
                    index,
                    choice.token_ids,
                    choice.text,
                    choice.logprobs,
                    (choice.finish_reason or unfinished, choice.stop_reason),
                    len(choice.token_ids),
                )
                for index, choice in enumerate(self._choices)
            ],
            prompt_token_ids=request.token_ids if echo else None,
            mm_placeholders=_placeholders(request) if echo else None,
            kv_transfer_params=kv,
            ec_transfer_params=ec,
            output_mode=request.output_mode,
        )

    def chunk(self, index: int, part: ChoiceDelta) -> GenerateChunk:
        """The event of a delta."""
        request = self._request
        echo = bool(request.return_token_ids) and self._first
        self._first = False
        options = request.stream_options
        total = len(self._choices[index].token_ids) if part.finish_reason else None
        return GenerateChunk(
            request_id=self.id,
            usage=self.usage if options and options.continuous_usage_stats else None,
            prompt_token_ids=request.token_ids if echo else msgspec.UNSET,
            mm_placeholders=_placeholders(request) or msgspec.UNSET if echo else msgspec.UNSET,
            output_mode=request.output_mode,
            choices=[
                self._choice(
                    index,
                    part.token_ids,
                    part.text or "",
                    part.logprobs.content if part.logprobs is not None else None,
                    (part.finish_reason, part.stop_reason),
                    total,
                )
            ],
        )

    def usage_event(self) -> dict[str, Any]:
        """The last event of a stream with `include_usage`; null members are left out."""
        usage = self.usage
        return {
            "request_id": self.id,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.total_tokens,
                "completion_tokens": usage.completion_tokens,
            },
            "output_mode": self._request.output_mode,
            "choices": [],
        }

    def _choice(
        self,
        index: int,
        token_ids: list[int],
        text: str,
        logprobs: list[TokenLogprob] | None,
        finish: tuple[FinishReason | None, int | str | None],
        total: int | None,
    ) -> GenerateChoice:
        as_text = self._request.output_mode == "text"
        versions: list[dict[str, Any]] | None = None
        if total is not None:
            versions = [{"version": _VERSION, "start": 0, "end": total}] if total else []
        return GenerateChoice(
            index=index,
            finish_reason=finish[0],
            stop_reason=finish[1],
            token_ids=token_ids,
            weight_versions=versions,
            text=text if as_text else msgspec.UNSET,
            logprobs=None if logprobs is None else Logprobs(logprobs),
        )


class Pacer:
    """`stream_interval`: events of so many tokens, but the first and the last at once.

    Args:
        every: tokens of an event.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._held: dict[int, ChoiceDelta] = {}
        self._begun: set[int] = set()

    def push(self, index: int, part: ChoiceDelta) -> ChoiceDelta | None:
        """What to send of a choice now that `part` is there."""
        held = self._held.pop(index, None)
        whole = part if held is None else held.followed_by(part)
        if (
            whole.finish_reason is None
            and index in self._begun
            and len(whole.token_ids) < self._every
        ):
            self._held[index] = whole
            return None
        self._begun.add(index)
        return whole


def _placeholders(request: GenerateRequest) -> dict[str, list[Any]] | None:
    if request.features is None:
        return None
    return {
        modality: [{"offset": r.offset, "length": r.length} for r in ranges]
        for modality, ranges in request.features.mm_placeholders.items()
    }
