"""The stateless derender endpoints: generate answers in, OpenAI answers out (wire-protocol §8).

The same derenderers as in the coordinator; between the calls of a stream the client carries their
state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from protocol.derender import ChoiceDerenderer, DerenderedDelta
from protocol.errors import InvalidRequest
from protocol.generate import GenerateChoice, GenerateResponse, Logprobs, Usage
from protocol.openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatDerenderRequest,
    ChatLogprobs,
    ChatMessage,
    CompletionChoice,
    CompletionDerenderRequest,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    TokenTextLogprob,
)
from protocol.rpc import TokenDelta
from render.derender import HfDerenderer
from render.parsers.tools.base import merge

_MAX_CHOICES = 16_384
_STATE_ERRORS = (
    ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip


class DerenderService:
    """Answers the derender endpoints of one model.

    Args:
        derenderer: the model's.
        model: name in answers.
        max_model_len: most tokens of a choice or prompt.
    """

    def __init__(self, derenderer: HfDerenderer, model: str, max_model_len: int) -> None:
        self._derenderer = derenderer
        self._model = model
        self._max_model_len = max_model_len

    def chat(self, call: ChatDerenderRequest) -> ChatCompletionResponse:
        """A whole chat answer.

        Raises:
            InvalidRequest: names the field.
        """
        response = call.generate_response
        if response is None:
            raise InvalidRequest("generate_response is required", "generate_response")
        request = call.chat_request or ChatCompletionRequest(messages=[])
        prompt = call.prompt_token_ids or response.prompt_token_ids or []
        self._check_response(response, "generate_response")
        self._check_length(prompt, "prompt_token_ids")
        choices = []
        for choice in response.choices:
            derenderer = self._derenderer.chat(_with_logprobs(request, choice), prompt)
            done = derenderer.push(_delta(choice))
            choices.append(
                ChatChoice(
                    index=choice.index,
                    message=ChatMessage(
                        content=done.content,
                        reasoning=done.reasoning or None,
                        tool_calls=merge(done.tool_calls) or msgspec.UNSET,
                    ),
                    logprobs=None if done.logprobs is None else ChatLogprobs(done.logprobs),
                    finish_reason=done.finish_reason or "stop",
                    stop_reason=done.stop_reason,
                    token_ids=choice.token_ids if request.return_token_ids else None,
                )
            )
        return ChatCompletionResponse(
            id=response.request_id,
            created=int(time.time()),
            model=call.model or self._model,
            choices=choices,
            usage=Usage.of(call.prompt_tokens, sum(len(c.token_ids) for c in response.choices)),
            prompt_logprobs=response.prompt_logprobs,
            kv_transfer_params=response.kv_transfer_params,
        )

    def chat_chunk(self, call: ChatDerenderRequest) -> dict[str, Any]:
        """One chunk of a chat stream and the state after it; raises as `chat` does."""
        chunk = call.generate_chunk
        if chunk is None:
            raise InvalidRequest("generate_chunk is required", "generate_chunk")
        if len(chunk.choices) > 1:
            raise InvalidRequest(
                "derender_chat_stream expects at most one choice per chunk "
                f"(got {len(chunk.choices)}).",
                "generate_chunk.choices",
            )
        state = dict(call.stream_state or {})
        request = call.chat_request or ChatCompletionRequest(messages=[])
        choices = []
        for choice in chunk.choices:
            self._check_length(choice.token_ids, "generate_chunk.choices[0].token_ids")
            done, inner = self._push(
                self._derenderer.chat(_with_logprobs(request, choice), call.prompt_token_ids or []),
                state.get("choice"),
                choice,
            )
            role = None if state.get("role_sent") else "assistant"
            state = {"role_sent": True, "choice": inner}
            delta: dict[str, Any] = {"content": done.content or None}
            if done.reasoning:
                delta["reasoning"] = done.reasoning
            if done.tool_calls:
                delta["tool_calls"] = done.tool_calls
            choices.append(
                ChatChunkChoice(
                    index=choice.index,
                    delta=ChatDelta(role=role, **delta),  # type: ignore[arg-type]
                    logprobs=None if done.logprobs is None else ChatLogprobs(done.logprobs),
                    finish_reason=done.finish_reason,
                    stop_reason=done.stop_reason,
                )
            )
        answer = ChatCompletionChunk(
            id=chunk.request_id,
            created=int(time.time()),
            model=call.model or self._model,
            choices=choices,
            usage=_usage(chunk.usage, call.prompt_tokens),
        )
        return {"chunk": answer, "stream_state": state}

    def completion(self, call: CompletionDerenderRequest) -> CompletionResponse:
        """A whole completion answer, choices of all responses in order; raises as `chat` does."""
        responses = call.generate_responses or []
        request = call.completion_request or CompletionRequest(prompt="")
        counts = _column(call.prompt_tokens, len(responses), "prompt_tokens", 0)
        prompts = _column(call.prompt_token_ids, len(responses), "prompt_token_ids", None)
        choices: list[CompletionChoice] = []
        for index, response in enumerate(responses):
            self._check_response(response, f"generate_responses[{index}]")
            prompt = prompts[index] or response.prompt_token_ids or []
            self._check_length(prompt, f"prompt_token_ids[{index}]")
            for choice in response.choices:
                derenderer = self._derenderer.completion(_with_logprobs(request, choice), prompt)
                done = derenderer.push(_delta(choice))
                choices.append(_completion_choice(done, len(choices), 0))
        kv = [response.kv_transfer_params for response in responses]
        tokens = sum(len(c.token_ids) for response in responses for c in response.choices)
        return CompletionResponse(
            id=responses[0].request_id,
            created=int(time.time()),
            model=call.model or self._model,
            choices=choices,
            usage=Usage.of(sum(counts), tokens),
            kv_transfer_params=kv[0] if all(params == kv[0] for params in kv) else None,
        )

    def completion_chunk(self, call: CompletionDerenderRequest) -> dict[str, Any]:
        """One chunk of a completion stream and the state after it; raises as `chat` does."""
        chunk = call.generate_chunk
        if chunk is None:
            raise InvalidRequest("generate_chunk is required", "generate_chunk")
        if len(chunk.choices) > 1:
            raise InvalidRequest(
                "derender_completion_stream expects at most one choice per chunk "
                f"(got {len(chunk.choices)}).",
                "generate_chunk.choices",
            )
        state = dict(call.stream_state or {})
        request = call.completion_request or CompletionRequest(prompt="")
        prompt = _ids(call.prompt_token_ids)
        choices = []
        for choice in chunk.choices:
            self._check_length(choice.token_ids, "generate_chunk.choices[0].token_ids")
            done, inner = self._push(
                self._derenderer.completion(_with_logprobs(request, choice), prompt),
                state.get("choice"),
                choice,
            )
            offset = state.get("text_offset", 0)
            if not isinstance(offset, int):
                raise InvalidRequest("invalid stream_state", "stream_state")
            choices.append(_completion_choice(done, choice.index, offset))
            state = {"choice": inner, "text_offset": offset + len(done.content)}
        count = call.prompt_tokens if isinstance(call.prompt_tokens, int) else 0
        answer = CompletionResponse(
            id=chunk.request_id,
            created=int(time.time()),
            model=call.model or self._model,
            choices=choices,
            usage=_usage(chunk.usage, count),
        )
        return {"chunk": answer, "stream_state": state}

    def _push(
        self, derenderer: ChoiceDerenderer, state: Any, choice: GenerateChoice
    ) -> tuple[DerenderedDelta, dict[str, Any]]:
        """Go on from a client's state; returns the new one."""
        try:
            if state is not None:
                derenderer.restore(state)  # type: ignore[attr-defined]
            done = derenderer.push(_delta(choice))
            return done, derenderer.state()  # type: ignore[attr-defined]
        except _STATE_ERRORS:
            raise InvalidRequest("invalid stream_state: derender failed", "stream_state") from None

    def _check_response(self, response: GenerateResponse, at: str) -> None:
        if len(response.choices) > _MAX_CHOICES:
            raise InvalidRequest(
                f"choices count ({len(response.choices)}) in response '{response.request_id}' "
                f"exceeds server maximum ({_MAX_CHOICES}).",
                f"{at}.choices",
            )
        if response.output_mode == "text":
            raise InvalidRequest("output_mode 'text' has text already", f"{at}.output_mode")
        for i, choice in enumerate(response.choices):
            if not choice.token_ids:
                raise InvalidRequest(
                    f"choice {i} has empty or null token_ids", f"{at}.choices[{i}].token_ids"
                )
            self._check_length(choice.token_ids, f"{at}.choices[{i}].token_ids")

    def _check_length(self, ids: list[int], at: str) -> None:
        if len(ids) > self._max_model_len:
            raise InvalidRequest(
                f"{at} length ({len(ids)}) exceeds max_model_len ({self._max_model_len}).", at
            )
        if ids and (min(ids) < 0 or max(ids) >= 2**32):
            raise InvalidRequest(f"{at} must hold token ids", at)


def _delta(choice: GenerateChoice) -> TokenDelta:
    logprobs = choice.logprobs if isinstance(choice.logprobs, Logprobs) else None
    return TokenDelta(
        choice.index, choice.token_ids, logprobs, choice.finish_reason, choice.stop_reason
    )


def _with_logprobs(request: Any, choice: GenerateChoice) -> Any:
    """The request, asking for logprobs where the answer has them."""
    if not isinstance(choice.logprobs, Logprobs) or request.logprobs:
        return request
    if isinstance(request, ChatCompletionRequest):
        return msgspec.structs.replace(request, logprobs=True, top_logprobs=-1)
    return msgspec.structs.replace(request, logprobs=0)


def _completion_choice(done: DerenderedDelta, index: int, offset: int) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=done.content,
        logprobs=None if done.logprobs is None else completion_logprobs(done.logprobs, offset),
        finish_reason=done.finish_reason,
        stop_reason=done.stop_reason,
    )


def completion_logprobs(entries: list[TokenTextLogprob], offset: int) -> CompletionLogprobs:
    """Logprobs in the form of completions; `offset` is the text's length before them."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return CompletionLogprobs(
        offsets,
        [entry.logprob for entry in entries],
        [entry.token for entry in entries],
        [{other["token"]: other["logprob"] for other in entry.top_logprobs} for entry in entries],
    )


def _column(given: Any, count: int, name: str, empty: Any) -> list[Any]:
    """A list parallel to the responses."""
    if given is None:
        return [empty] * count
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise InvalidRequest(
            f"{name} length ({len(given)}) must equal generate_responses length ({count})", name
        )
    for value in given:
        if name == "prompt_token_ids" and not isinstance(value, list | None):
            raise InvalidRequest("prompt_token_ids must be a list per response", name)
    return given


def _ids(given: Sequence[int | list[int] | None] | None) -> list[int]:
    """The prompt of the one choice of a chunk: a list of ids, or a list of one such list."""
    if given and isinstance(given[0], list):
        return given[0]
    return [token for token in given or () if isinstance(token, int)]


def _usage(usage: Usage | None, prompt_tokens: int) -> Any:
    if usage is None:
        return msgspec.UNSET
    return Usage.of(prompt_tokens or usage.prompt_tokens, usage.completion_tokens)
