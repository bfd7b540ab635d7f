"""Sampling parameters: the request over the model's defaults, always explicit."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.sampling import SamplingParams
from render.sampling import SamplingDefaults, sampling_params


def params(config: dict[str, Any] | None = None, prompt: int = 10, **fields: Any) -> SamplingParams:
    request = ChatCompletionRequest(messages=[], **fields)
    defaults = SamplingDefaults(config or {})
    return sampling_params(request, defaults, prompt_tokens=prompt, max_model_len=100)


CONFIG = {
    "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05,
    "max_new_tokens": 77, "eos_token_id": [1],
}  # fmt: skip


def test_the_models_defaults_are_taken() -> None:
    found = params(CONFIG)
    assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.95, 20)
    assert found.repetition_penalty == 1.05
    assert found.max_tokens == 77
    assert found.stop_token_ids is None


def test_the_request_wins() -> None:
    found = params(CONFIG, temperature=0.0, top_p=1.0, max_tokens=5)
    assert (found.temperature, found.top_p, found.max_tokens) == (0.0, 1.0, 5)


def test_what_is_left_of_the_context_is_the_last_resort() -> None:
    assert params().max_tokens == 90
    assert params(CONFIG, prompt=50).max_tokens == 50
    assert params(max_tokens=3, max_completion_tokens=4).max_tokens == 4


def test_do_sample_false_means_greedy_unless_several_are_asked_for() -> None:
    assert params({"do_sample": False}).temperature == 0.0
    assert params({"do_sample": False}, n=2).temperature == 1.0
    assert params({"do_sample": False, "temperature": 0.5}).temperature == 0.5
    assert params({}).temperature == 1.0


def test_greedy_leaves_nothing_else_to_choose_by() -> None:
    found = params(CONFIG, temperature=0.0, min_p=0.1)
    assert (found.top_p, found.top_k, found.min_p) == (1.0, 0, 0.0)


def test_a_temperature_near_zero_is_the_least_that_is_sampled() -> None:
    assert params(temperature=0.005).temperature == 0.01


def test_seed_minus_one_is_none() -> None:
    assert params(seed=-1).seed is None
    assert params(seed=0).seed == 0


def test_logprobs_of_both_endpoints() -> None:
    assert params(logprobs=True).logprobs == 0
    assert params(logprobs=True, top_logprobs=3).logprobs == 3
    assert params().logprobs is None
    completion = CompletionRequest(prompt="x", logprobs=2)
    found = sampling_params(completion, SamplingDefaults({}), prompt_tokens=1, max_model_len=100)
    assert (found.logprobs, found.max_tokens) == (2, 16)


def test_transfer_parameters_ride_in_extra_args() -> None:
    found = params(kv_transfer_params={"a": 1}, ec_transfer_params={"b": 2})
    assert found.extra_args == {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"b": 2}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0.0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 91}, "max_tokens"),
        ({"max_completion_tokens": 91}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_bad_value_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(**fields)
    assert caught.value.param == param


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(prompt=100)
    assert caught.value.param == "input_tokens"
