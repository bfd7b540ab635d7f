"""`/v1/completions`: one or several prompts, answered together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.streaming import EventStream, WholeAnswer
from coordinator.concurrency import merged
from coordinator.front import Front, now
from coordinator.stages.derender import Derendering
from coordinator.stages.render import Rendering
from coordinator.state import Admitted, RenderedPrompt
from coordinator.visit import Visit
from protocol.derender import DerenderedDelta
from protocol.errors import InvalidRequest
from protocol.generate import FinishReason, Usage
from protocol.openai import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    TokenTextLogprob,
    refuse_unsupported,
)
from serving.http import decode_json, json_response, read_body, sse


@dataclass(slots=True)
class _Choice:
    """What one choice of a whole answer has collected."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenTextLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, delta: DerenderedDelta) -> None:
        self.text.append(delta.content)
        self.logprobs += delta.logprobs or []
        self.token_ids += delta.token_ids
        self.finish_reason = delta.finish_reason or self.finish_reason
        if delta.stop_reason is not None:
            self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class _Counts:
    prompt: int = 0
    completion: int = 0

    def usage(self) -> Usage:
        return Usage.of(self.prompt, self.completion)


class CompletionsEndpoint:
    """Renders, runs and answers a completion request."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, request: Request) -> Response:
        """The answer, not begun yet."""
        visit = self._front.enter(request, "completions")
        with visit.until_answered():
            body = await read_body(request)
            asked = decode_json(body, CompletionRequest)
            refuse_unsupported(asked)
            self._front.check_choices(asked.n, _prompts(asked))
            if asked.echo:
                raise InvalidRequest("echo is not supported by this server", "echo")
            model = self._front.check_model(asked.model)
            visit.ticket.expect(0, (asked.max_tokens or 0) * (asked.n or 1))
            admitted = self._front.admit(
                request, visit, "cmpl-", asked.request_id, "completions", body
            )
            if asked.stream:
                return EventStream(self._events(admitted, asked, model, visit), visit)
            return WholeAnswer(self._whole(admitted, asked, model, visit), visit)

    async def _texts(
        self, rendering: Rendering, asked: CompletionRequest, counts: _Counts, visit: Visit
    ) -> AsyncGenerator[tuple[int, DerenderedDelta], None]:
        """(choice over all prompts, delta), as they come."""
        counts.prompt = sum(len(p.request.token_ids) for p in rendering.prompts)
        self._front.rendered(visit, rendering.prompts)
        streams = [self._prompt(rendering, prompt, asked) for prompt in rendering.prompts]
        async with contextlib.aclosing(merged(streams)) as texts:
            async for index, delta in texts:
                counts.completion += len(delta.token_ids)
                yield index, delta

    async def _prompt(
        self, rendering: Rendering, prompt: RenderedPrompt, asked: CompletionRequest
    ) -> AsyncGenerator[tuple[int, DerenderedDelta], None]:
        n = prompt.request.sampling_params.n
        ids = prompt.request.token_ids
        derendering = Derendering([self._front.derenderer.completion(asked, ids) for _ in range(n)])
        async with (
            contextlib.aclosing(self._front.pipeline.tokens(rendering, prompt)) as tokens,
            contextlib.aclosing(derendering.texts(tokens)) as texts,
        ):
            async for index, delta in texts:
                yield prompt.number * n + index, delta

    async def _events(
        self, admitted: Admitted, asked: CompletionRequest, model: str, visit: Visit
    ) -> AsyncGenerator[bytes, None]:
        created = now()
        options = asked.stream_options
        with_usage = options is not None and bool(options.include_usage)
        in_every = with_usage and options is not None and bool(options.continuous_usage_stats)

        def chunk(choices: list[CompletionChoice], usage: Usage | None) -> bytes:
            shown = usage if with_usage else msgspec.UNSET
            return sse(
                CompletionResponse(
                    id=admitted.request_id, created=created, model=model, choices=choices,
                    usage=shown,
                )
            )  # fmt: skip

        counts = _Counts()
        offsets: dict[int, int] = {}
        async with (
            self._front.render.rendered(admitted) as rendering,
            contextlib.aclosing(self._texts(rendering, asked, counts, visit)) as texts,
        ):
            async for index, delta in texts:
                logprobs = None
                if delta.logprobs is not None:
                    logprobs, offsets[index] = _logprobs(delta.logprobs, offsets.get(index, 0))
                if not (delta.content or delta.logprobs or delta.finish_reason):
                    continue
                choice = CompletionChoice(
                    index=index,
                    text=delta.content,
                    logprobs=logprobs,
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    token_ids=delta.token_ids if asked.return_token_ids else None,
                )
                yield chunk([choice], counts.usage() if in_every else None)
            if with_usage:
                yield chunk([], counts.usage())

    async def _whole(
        self, admitted: Admitted, asked: CompletionRequest, model: str, visit: Visit
    ) -> Response:
        counts = _Counts()
        async with (
            self._front.render.rendered(admitted) as rendering,
            contextlib.aclosing(self._texts(rendering, asked, counts, visit)) as texts,
        ):
            n = rendering.prompts[0].request.sampling_params.n
            choices = [_Choice() for _ in range(n * len(rendering.prompts))]
            async for index, delta in texts:
                choices[index].add(delta)
        return json_response(
            CompletionResponse(
                id=admitted.request_id,
                created=now(),
                model=model,
                choices=[_answer(i, choice, asked) for i, choice in enumerate(choices)],
                usage=counts.usage(),
            )
        )


def _prompts(asked: CompletionRequest) -> int:
    """How many prompts there are: a list of token ids is one."""
    prompt = asked.prompt
    if not prompt or isinstance(prompt, str) or isinstance(prompt[0], int):
        return 1  # render refuses none at all
    return len(prompt)


def _answer(index: int, choice: _Choice, asked: CompletionRequest) -> CompletionChoice:
    logprobs = _logprobs(choice.logprobs, 0)[0] if asked.logprobs is not None else None
    return CompletionChoice(
        index=index,
        text="".join(choice.text),
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if asked.return_token_ids else None,
    )


def _logprobs(entries: list[TokenTextLogprob], offset: int) -> tuple[CompletionLogprobs, int]:
    """The completion form of logprobs, and the text offset after them."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    form = CompletionLogprobs(
        offsets,
        [entry.logprob for entry in entries],
        [entry.token for entry in entries],
        [{top["token"]: top["logprob"] for top in e.top_logprobs} or None for e in entries],
    )
    return form, offset
