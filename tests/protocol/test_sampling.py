"""`sampling_params`: every rule of wire-protocol §2.7, and the table of what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.sampling import MAX_LOGPROBS, UNSUPPORTED, SamplingParams

CONTRACT = {
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens",
    "logprobs", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start",
    "logprob_token_ids", "flat_logprobs", "detokenize", "skip_special_tokens",
    "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind",
    "stream_interval", "skip_clone", "output_text_buffer_length", "structured_outputs",
    "logit_bias", "allowed_token_ids", "extra_args", "bad_words", "skip_reading_prefix_cache",
    "thinking_token_budget", "repetition_detection", "watermarking",
    "routed_experts_prompt_start", "trace_decode_token_ids",
}  # fmt: skip
"""The table of the contract."""

RENDERED = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "max_tokens": 4,
    "output_kind": 2,
    "skip_clone": True,
    "bad_words": [],
    "skip_reading_prefix_cache": False,
}
"""The contract's example of a rendered object."""


def params(**fields: Any) -> SamplingParams:
    """The parameters as they come from JSON."""
    return msgspec.json.decode(json.dumps(fields), type=SamplingParams)


def test_the_schema_is_the_contracts_table() -> None:
    assert set(SamplingParams.__struct_fields__) == CONTRACT


def test_the_refused_are_fields_of_the_schema_and_their_default_is_neutral() -> None:
    assert UNSUPPORTED.keys() <= CONTRACT
    for name, neutral in UNSUPPORTED.items():
        assert getattr(SamplingParams(), name) in neutral


def test_a_rendered_object_is_accepted_and_supported() -> None:
    params(**RENDERED).refuse_unsupported()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1."),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
        (
            {"repetition_penalty": 0},
            "repetition_penalty must be greater than zero, got 0.0.",
        ),
        ({"temperature": 3.0}, "temperature must be in [0, 2], got 3.0."),
        ({"temperature": -1.0}, "temperature must be non-negative, got -1.0."),
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1."),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"min_p": 1.5}, "min_p must be in [0, 1], got 1.5."),
        ({"min_p": -0.5}, "min_p must be in [0, 1], got -0.5."),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
        ({"stop": ""}, "stop cannot contain an empty string."),
        (
            {"stop": "a", "detokenize": False},
            "stop strings are only supported when detokenize is True. "
            "Set detokenize=True to use stop.",
        ),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
        (
            {"min_tokens": 5, "max_tokens": 3},
            "min_tokens must be less than or equal to max_tokens=3, got 5.",
        ),
        ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2."),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids may hold at most 128 ids."),
        ({"temperature": "hot"}, "Expected `float`, got `str`"),
        ({"seed": 2**63}, "Expected `int` <= 9223372036854775807"),
        ({"stop_token_ids": [2**70]}, "Expected `int` <= 9223372036854775807"),
    ],
)
def test_each_rule_is_refused_with_its_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        params(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_numbers_that_are_not_numbers_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({name: float("nan")}, SamplingParams)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_must_be_finite(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({name: float("inf")}, SamplingParams)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_the_engine_does_not_honour_is_refused_naming_it(name: str) -> None:
    value: Any = {
        "flat_logprobs": True,
        "prompt_logprobs": 1,
        "prompt_logprob_start": 1,
        "logprob_token_ids": [1],
        "logit_bias": {"1": 1.0},
        "allowed_token_ids": [1],
        "bad_words": ["x"],
        "thinking_token_budget": 3,
        "routed_experts_prompt_start": 1,
    }.get(name, {"json": "{}"})
    with pytest.raises(InvalidRequest) as caught:
        params(**{name: value}).refuse_unsupported()
    assert caught.value.param == f"sampling_params.{name}"
    assert name in caught.value.message


def test_more_logprobs_than_the_server_gives_are_refused() -> None:
    params(logprobs=MAX_LOGPROBS).refuse_unsupported()
    with pytest.raises(InvalidRequest) as caught:
        params(logprobs=100).refuse_unsupported()
    assert caught.value.message == (
        "Requested sample logprobs of 100, which is greater than max allowed: 20"
    )


def test_small_temperatures_are_raised_and_zero_is_greedy() -> None:
    assert params(temperature=0.001).effective_temperature == 0.01
    assert params(temperature=0).greedy
    assert params(temperature=0).effective_temperature == 0.0
    assert params(temperature=0.5).effective_temperature == 0.5


def test_seed_minus_one_is_none() -> None:
    assert params(seed=-1).effective_seed is None
    assert params(seed=7).effective_seed == 7


def test_stop_is_a_list_whatever_its_form() -> None:
    assert params(stop="a").stop_strings == ["a"]
    assert params(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert params().stop_strings == []


@given(
    st.floats(0.01, 2),
    st.floats(0.01, 1),
    st.integers(-1, 1000),
    st.integers(1, 100),
    st.integers(1, 8),
)
def test_values_inside_the_ranges_survive_the_wire(
    temperature: float, top_p: float, top_k: int, max_tokens: int, n: int
) -> None:
    sent = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=max_tokens, n=n
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams) == sent


def test_max_tokens_and_temperature_are_written_when_they_are_set() -> None:
    """A receiver takes an absent `max_tokens` for the rest of the context."""
    written = msgspec.to_builtins(SamplingParams(max_tokens=16, temperature=0.0))
    assert written == {"max_tokens": 16, "temperature": 0.0}
