"""Sampling parameters of a request over the model's defaults (wire-protocol §9.5, §9.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.sampling import GREEDY_EPSILON, MAX_LOGPROBS, SamplingParams

_DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class SamplingDefaults:
    """What generation_config.json says, with the contract's names.

    An explicit `do_sample: false` without a temperature means greedy.
    """

    def __init__(self, generation_config: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {
            name: generation_config[name]
            for name in _DEFAULTED
            if isinstance(generation_config.get(name), int | float)
        }
        self.greedy = (
            generation_config.get("do_sample") is False and "temperature" not in self.values
        )
        most = generation_config.get("max_new_tokens")
        self.max_new_tokens: int | None = most if isinstance(most, int) else None


def sampling_params(
    request: ChatCompletionRequest | CompletionRequest,
    defaults: SamplingDefaults,
    *,
    prompt_tokens: int,
    max_model_len: int,
    form: dict[str, Any] | None = None,
) -> SamplingParams:
    """The parameters as they go on the wire; `max_tokens` and `temperature` are always set.

    Args:
        request: chat or completion request.
        defaults: the model's.
        prompt_tokens: length of the prompt, placeholders expanded.
        max_model_len: tokens of context.
        form: what the answer must look like.

    Raises:
        InvalidRequest: a value is out of range, or the prompt leaves no room.
    """
    values = {name: defaults.values.get(name) for name in _DEFAULTED}
    values |= {name: given for name in _DEFAULTED if (given := getattr(request, name)) is not None}
    n = request.n if request.n is not None else 1
    if values["temperature"] is None:
        values["temperature"] = 0.0 if defaults.greedy and n == 1 else 1.0
    extra = {
        name: given
        for name in ("kv_transfer_params", "ec_transfer_params")
        if (given := getattr(request, name)) is not None
    }
    logprobs = _logprobs(request)
    if logprobs is not None and logprobs > MAX_LOGPROBS:
        raise InvalidRequest(
            f"Requested sample logprobs of {logprobs}, which is greater than max allowed: "
            f"{MAX_LOGPROBS}",
            "top_logprobs" if isinstance(request, ChatCompletionRequest) else "logprobs",
        )
    try:
        _settle(values)
        return SamplingParams(
            n=n,
            seed=None if request.seed == -1 else request.seed,
            stop=_stop(request.stop),
            stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos,
            max_tokens=_max_tokens(request, defaults, max_model_len - prompt_tokens),
            min_tokens=request.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=request.prompt_logprobs,
            include_stop_str_in_output=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            structured_outputs=form,
            extra_args=extra or None,
            **_given(values),
        )
    except ValueError as error:
        raise InvalidRequest(str(error), _field(str(error))) from None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _settle(values: dict[str, Any]) -> None:
    """Bring a temperature near 0 to the least that is sampled; at 0 nothing else counts.

    Raises:
        ValueError: what is not to count is out of range all the same.
    """
    temperature = values["temperature"]
    if temperature == 0:
        SamplingParams(**_given(values))
        values |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    elif 0 < temperature < GREEDY_EPSILON:
        values["temperature"] = GREEDY_EPSILON


def _stop(stop: str | list[str] | None) -> list[str] | None:
    return [stop] if isinstance(stop, str) else stop or None


def _max_tokens(
    request: ChatCompletionRequest | CompletionRequest, defaults: SamplingDefaults, left: int
) -> int:
    """What was asked for, or the model's default, or what is left of the context."""
    if left < 1:
        raise InvalidRequest(
            f"the prompt is {1 - left} tokens too long for the model's context", "input_tokens"
        )
    name, asked = "max_tokens", request.max_tokens
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", request.max_completion_tokens
    if asked is None:
        return min(left, defaults.max_new_tokens or left)
    if asked < 1:
        raise InvalidRequest(f"{name} must be at least 1, got {asked}.", name)
    if asked > left:
        raise InvalidRequest(
            f"{name} is {asked}, but the prompt leaves {left} tokens of the model's context", name
        )
    return asked


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    return (request.top_logprobs or 0) if request.logprobs else None


def _field(message: str) -> str | None:
    """The parameter that a message of SamplingParams begins with."""
    word = message.split(" ", 1)[0]
    return word if word in SamplingParams.__struct_fields__ else None
