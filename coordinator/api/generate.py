"""`/inference/v1/generate` and `/inference/v1/abort_requests`: the pipeline from encode on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.streaming import EventStream, WholeAnswer
from coordinator.concurrency import until
from coordinator.front import Front, now
from coordinator.stages.derender import Derendering
from coordinator.stages.render import Rendering, reproducible
from coordinator.state import RenderedPrompt
from protocol.derender import DerenderedDelta
from protocol.errors import InvalidRequest
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
from protocol.openai import CompletionRequest, TokenTextLogprob
from protocol.rpc import TokenDelta
from serving.http import decode_json, json_response, read_body, require_scale_out, sse


@dataclass(frozen=True, slots=True)
class _News:
    """New tokens of a choice and, where text is asked for, their text."""

    delta: TokenDelta
    text: DerenderedDelta | None

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.delta.finish_reason or (self.text.finish_reason if self.text else None)

    @property
    def stop_reason(self) -> int | str | None:
        stop = self.text.stop_reason if self.text is not None else None
        return stop if stop is not None else self.delta.stop_reason


@dataclass(slots=True)
class _Choice:
    """What one choice of a whole answer has collected."""

    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text_logprobs: list[TokenTextLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "abort"
    stop_reason: int | str | None = None

    def add(self, news: _News) -> None:
        self.token_ids += news.delta.token_ids
        if news.delta.logprobs is not None:
            self.logprobs += news.delta.logprobs.content
        if news.text is not None:
            self.text.append(news.text.content)
            self.text_logprobs += news.text.logprobs or []
        self.finish_reason = news.finish_reason or self.finish_reason
        self.stop_reason = news.stop_reason if news.stop_reason is not None else self.stop_reason


class GenerateEndpoint:
    """Token ids in, token ids out."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._running: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def generate(self, request: Request) -> Response:
        """The answer, not begun yet."""
        require_scale_out(self._front.config.enable_scale_out)
        visit = self._front.enter(request, "generate")
        with visit.until_answered():
            asked = decode_json(await read_body(request), GenerateRequest)
            _refuse(asked)
            self._front.check_choices(asked.sampling_params.n)
            model = self._front.check_model(asked.model)
            admitted = self._front.admit(request, visit, "generate-tokens-", asked.request_id)
            sampling = msgspec.structs.replace(reproducible(asked.sampling_params), stop=None)
            sent = msgspec.structs.replace(
                asked,
                request_id=admitted.internal_id,
                sampling_params=sampling,
                output_mode="tokens",
            )
            prompt = RenderedPrompt(admitted, 0, sent)
            visit.ticket.expect(len(prompt.media), sampling.max_tokens or 0)
            self._front.rendered(visit, [prompt])
            if asked.stream:
                return EventStream(self._events(prompt, asked), visit)
            return WholeAnswer(self._whole(prompt, asked, model), visit)

    async def abort(self, request: Request) -> Response:
        """End running requests by their response ids; unknown ones are ignored."""
        require_scale_out(self._front.config.enable_scale_out)
        try:
            body = msgspec.json.decode(await request.body())
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"JSON decode error: {error}") from None
        ids = body.get("request_ids") if isinstance(body, dict) else None
        if ids is None:
            raise InvalidRequest("Missing 'request_ids' in request body", "request_ids")
        for request_id in [ids] if isinstance(ids, str) else ids:
            if isinstance(request_id, str):
                for running in self._running.get(request_id, ()):
                    running.set()
        return Response()

    @contextlib.asynccontextmanager
    async def _news(
        self, prompt: RenderedPrompt, asked: GenerateRequest
    ) -> AsyncIterator[AsyncGenerator[tuple[int, _News], None]]:
        aborted = asyncio.Event()
        request_id = prompt.admitted.request_id
        self._running[request_id].add(aborted)
        tokens = self._front.pipeline.tokens(Rendering(None, [prompt]), prompt)
        try:
            async with (
                contextlib.aclosing(until(aborted, tokens)) as deltas,
                contextlib.aclosing(self._with_text(deltas, asked)) as news,
            ):
                yield news
        finally:
            self._running[request_id].discard(aborted)
            if not self._running[request_id]:
                del self._running[request_id]

    async def _with_text(
        self, tokens: AsyncGenerator[TokenDelta, None], asked: GenerateRequest
    ) -> AsyncGenerator[tuple[int, _News], None]:
        """Through the derenderer where text or a stop string is asked for."""
        sampling = asked.sampling_params
        if asked.output_mode == "tokens" and not sampling.stop_strings:
            async for delta in tokens:
                yield delta.index, _News(delta, None)
            return
        form = CompletionRequest(
            prompt=list(asked.token_ids),
            stop=sampling.stop,
            include_stop_str_in_output=sampling.include_stop_str_in_output,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            logprobs=sampling.logprobs,
            max_tokens=sampling.max_tokens,
        )
        choices = [
            self._front.derenderer.completion(form, asked.token_ids) for _ in range(sampling.n)
        ]
        async for index, delta, text in Derendering(choices).both(tokens):
            yield index, _News(delta, text)

    async def _events(
        self, prompt: RenderedPrompt, asked: GenerateRequest
    ) -> AsyncGenerator[bytes, None]:
        request_id = prompt.admitted.request_id
        options = asked.stream_options
        with_usage = options is not None and bool(options.include_usage)
        in_every = options is not None and bool(options.continuous_usage_stats)
        made: dict[int, int] = {}
        unfinished = set(range(asked.sampling_params.n))
        first = asked.return_token_ids
        async with self._news(prompt, asked) as all_news:
            async for index, news in all_news:
                made[index] = made.get(index, 0) + len(news.delta.token_ids)
                if news.finish_reason is not None:
                    unfinished.discard(index)
                usage = Usage.of(len(asked.token_ids), made[index]) if in_every else None
                yield sse(
                    GenerateChunk(
                        request_id=request_id,
                        usage=usage,
                        prompt_token_ids=asked.token_ids if first else msgspec.UNSET,
                        mm_placeholders=_placeholders(asked) or msgspec.UNSET
                        if first
                        else msgspec.UNSET,
                        output_mode=asked.output_mode,
                        choices=[_choice_of(index, news, asked)],
                    )
                )
                first = False
            for index in sorted(unfinished):
                choice = GenerateChoice(index=index, finish_reason="abort")
                yield sse(GenerateChunk(request_id=request_id, choices=[choice]))
        if with_usage:
            usage = Usage.of(len(asked.token_ids), sum(made.values()))
            yield sse(GenerateChunk(request_id=request_id, usage=usage))

    async def _whole(self, prompt: RenderedPrompt, asked: GenerateRequest, model: str) -> Response:
        choices = [_Choice() for _ in range(asked.sampling_params.n)]
        async with self._news(prompt, asked) as all_news:
            async for index, news in all_news:
                choices[index].add(news)
        made = sum(len(choice.token_ids) for choice in choices)
        return json_response(
            GenerateResponse(
                request_id=prompt.admitted.request_id,
                model=model,
                created=now(),
                usage=Usage.of(len(asked.token_ids), made),
                choices=[_answer(i, choice, asked) for i, choice in enumerate(choices)],
                prompt_token_ids=asked.token_ids if asked.return_token_ids else None,
                mm_placeholders=_placeholders(asked) if asked.return_token_ids else None,
                output_mode=asked.output_mode,
            )
        )


def _refuse(asked: GenerateRequest) -> None:
    """Refuse what the coordinator decides itself, and items that it cannot have encoded.

    Raises:
        InvalidRequest: names the field.
    """
    for name, given in (
        ("ec_transfer_params", asked.ec_params),
        ("kv_transfer_params", asked.kv_params),
        ("resume_token_ids", asked.resume_token_ids),
    ):
        if given:
            raise InvalidRequest(f"{name} must not be given to a coordinator", name)
    asked.refuse_unsupported()
    for item in asked.features.items() if asked.features is not None else ():
        if item.handle is not None:
            raise InvalidRequest("kwargs_handles must not be given", "features.kwargs_handles")
        if item.kwargs is None:
            raise InvalidRequest(
                "every item needs kwargs_data: the coordinator has it encoded",
                f"features.kwargs_data.{item.modality}.{item.index}",
            )


def _placeholders(asked: GenerateRequest) -> dict[str, list[object]] | None:
    if asked.features is None:
        return None
    ranges: dict[str, list[object]] = msgspec.to_builtins(asked.features.mm_placeholders)
    return ranges


def _choice_of(index: int, news: _News, asked: GenerateRequest) -> GenerateChoice:
    text = news.text if asked.output_mode == "text" else None
    logprobs = news.delta.logprobs
    if text is not None and logprobs is not None:
        logprobs = _named(logprobs.content, text.logprobs or [])
    return GenerateChoice(
        index=index,
        finish_reason=news.finish_reason,
        stop_reason=news.stop_reason,
        token_ids=news.delta.token_ids,
        text=text.content if text is not None else msgspec.UNSET,
        logprobs=logprobs,
    )


def _answer(index: int, choice: _Choice, asked: GenerateRequest) -> GenerateChoice:
    logprobs = None
    if asked.sampling_params.logprobs is not None:
        logprobs = Logprobs(choice.logprobs)
        if asked.output_mode == "text":
            logprobs = _named(choice.logprobs, choice.text_logprobs)
    return GenerateChoice(
        index=index,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids,
        text="".join(choice.text) if asked.output_mode == "text" else msgspec.UNSET,
        logprobs=logprobs,
    )


def _named(entries: list[TokenLogprob], texts: list[TokenTextLogprob]) -> Logprobs:
    """Logprobs of text mode: each token and alternative with its text."""
    named = []
    for entry, text in zip(entries, texts, strict=False):
        tops = [
            msgspec.structs.replace(top, token=name["token"], bytes=name.get("bytes"))
            for top, name in zip(entry.top_logprobs, text.top_logprobs, strict=False)
        ]
        named.append(
            msgspec.structs.replace(entry, token=text.token, bytes=text.bytes, top_logprobs=tops)
        )
    return Logprobs(named)
