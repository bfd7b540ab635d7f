"""`/v1/chat/completions`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.streaming import EventStream, WholeAnswer
from coordinator.front import Front, now
from coordinator.stages.derender import Derendering
from coordinator.state import Admitted, RenderedPrompt
from coordinator.visit import Visit
from protocol.derender import DerenderedDelta
from protocol.generate import FinishReason, Usage
from protocol.openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    TokenTextLogprob,
    refuse_unsupported,
)
from serving.http import decode_json, json_response, read_body, sse

_MEDIA = frozenset(
    {"media", "image_url", "input_image", "video_url", "audio_url", "input_audio", "image_embeds"}
)
"""Types of content parts that become items; `media` stands for none given."""


@dataclass(slots=True)
class _Choice:
    """What one choice of a whole answer has collected."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: list[TokenTextLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None

    def add(self, delta: DerenderedDelta) -> None:
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            self._add_call(call)
        self.logprobs += delta.logprobs or []
        self.token_ids += delta.token_ids
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        if delta.stop_reason is not None:
            self.stop_reason = delta.stop_reason

    def _add_call(self, delta: dict[str, Any]) -> None:
        call = self.tool_calls.setdefault(
            delta.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}}
        )
        call.update({key: delta[key] for key in ("id", "type") if delta.get(key)})
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


class ChatEndpoint:
    """Renders, runs and answers a chat request."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, request: Request) -> Response:
        """The answer, not begun yet."""
        visit = self._front.enter(request, "chat")
        with visit.until_answered():
            body = await read_body(request)
            asked = decode_json(body, ChatCompletionRequest)
            refuse_unsupported(asked)
            self._front.check_choices(asked.n)
            model = self._front.check_model(asked.model)
            wanted = asked.max_completion_tokens or asked.max_tokens or 0
            visit.ticket.expect(_media(asked.messages), wanted * (asked.n or 1))
            admitted = self._front.admit(
                request, visit, "chatcmpl-", asked.request_id, "chat", body
            )
            if asked.stream:
                return EventStream(self._events(admitted, asked, model, visit), visit)
            return WholeAnswer(self._whole(admitted, asked, model, visit), visit)

    @contextlib.asynccontextmanager
    async def _run(
        self, admitted: Admitted, asked: ChatCompletionRequest, visit: Visit
    ) -> AsyncIterator[
        tuple[RenderedPrompt, Derendering, AsyncGenerator[tuple[int, DerenderedDelta], None]]
    ]:
        front = self._front
        async with front.render.rendered(admitted) as rendering:
            front.rendered(visit, rendering.prompts)
            prompt = rendering.prompts[0]
            ids = prompt.request.token_ids
            derendering = Derendering(
                [front.derenderer.chat(asked, ids) for _ in range(prompt.request.sampling_params.n)]
            )
            async with (
                contextlib.aclosing(front.pipeline.tokens(rendering, prompt)) as tokens,
                contextlib.aclosing(derendering.texts(tokens)) as texts,
            ):
                yield prompt, derendering, texts

    async def _events(
        self, admitted: Admitted, asked: ChatCompletionRequest, model: str, visit: Visit
    ) -> AsyncGenerator[bytes, None]:
        created = now()
        options = asked.stream_options
        with_usage = options is not None and bool(options.include_usage)
        in_every = with_usage and options is not None and bool(options.continuous_usage_stats)

        def chunk(choices: list[ChatChunkChoice], usage: Usage | None) -> bytes:
            shown = usage if with_usage else msgspec.UNSET
            return sse(
                ChatCompletionChunk(
                    id=admitted.request_id, created=created, model=model, choices=choices,
                    usage=shown,
                )
            )  # fmt: skip

        async with self._run(admitted, asked, visit) as (prompt, derendering, texts):
            begun: set[int] = set()
            async for index, delta in texts:
                usage = _usage(prompt, derendering)
                if index not in begun:
                    begun.add(index)
                    first = ChatDelta(role="assistant", content="")
                    choice = ChatChunkChoice(index=index, delta=first)
                    yield chunk([choice], usage if in_every else None)
                news = _chunk_choice(index, delta, asked)
                if news is not None:
                    yield chunk([news], usage if in_every else None)
            if with_usage:
                yield chunk([], _usage(prompt, derendering))

    async def _whole(
        self, admitted: Admitted, asked: ChatCompletionRequest, model: str, visit: Visit
    ) -> Response:
        async with self._run(admitted, asked, visit) as (prompt, derendering, texts):
            choices = [_Choice() for _ in range(prompt.request.sampling_params.n)]
            async for index, delta in texts:
                choices[index].add(delta)
            return json_response(
                ChatCompletionResponse(
                    id=admitted.request_id,
                    created=now(),
                    model=model,
                    choices=[_answer(i, choice, asked) for i, choice in enumerate(choices)],
                    usage=_usage(prompt, derendering),
                    prompt_token_ids=prompt.request.token_ids if asked.return_token_ids else None,
                )
            )


def _media(messages: list[dict[str, Any]]) -> int:
    """Content parts that are no text; render checks them."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return sum(isinstance(part, dict) and part.get("type", "media") in _MEDIA for part in parts)


def _usage(prompt: RenderedPrompt, derendering: Derendering) -> Usage:
    return Usage.of(len(prompt.request.token_ids), derendering.completion_tokens)


def _chunk_choice(
    index: int, delta: DerenderedDelta, asked: ChatCompletionRequest
) -> ChatChunkChoice | None:
    """The chunk's choice, or None where there is nothing to say."""
    reasoning = delta.reasoning if asked.include_reasoning else ""
    silent = not (delta.content or reasoning or delta.tool_calls or delta.logprobs)
    if silent and delta.finish_reason is None and not asked.return_token_ids:
        return None
    return ChatChunkChoice(
        index=index,
        delta=ChatDelta(
            content=delta.content or msgspec.UNSET,
            reasoning=reasoning or msgspec.UNSET,
            tool_calls=delta.tool_calls or msgspec.UNSET,
        ),
        logprobs=ChatLogprobs(delta.logprobs) if delta.logprobs is not None else None,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
        token_ids=delta.token_ids if asked.return_token_ids else msgspec.UNSET,
    )


def _answer(index: int, choice: _Choice, asked: ChatCompletionRequest) -> ChatChoice:
    content = "".join(choice.content)
    calls = [choice.tool_calls[i] for i in sorted(choice.tool_calls)]
    return ChatChoice(
        index=index,
        message=ChatMessage(
            content=content if content or not calls else None,
            reasoning=("".join(choice.reasoning) or None) if asked.include_reasoning else None,
            tool_calls=calls or msgspec.UNSET,
        ),
        logprobs=ChatLogprobs(choice.logprobs) if asked.logprobs else None,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if asked.return_token_ids else None,
    )
