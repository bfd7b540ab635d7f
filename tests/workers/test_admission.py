"""Every parameter of the contract is honoured, refused by name, or has no meaning here."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.generate import GenerateRequest
from protocol.sampling import UNSUPPORTED, SamplingParams
from workers.adapters.base import ModelShape
from workers.admission import Limits, admit

SHAPE = ModelShape(8, 1, 1, 8, 100, 64, 0, frozenset({2}))
LIMITS = Limits(("m",), 64, 4)

HONOURED = {
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens",
    "logprobs", "detokenize", "skip_special_tokens", "include_stop_str_in_output",
    "stream_interval", "skip_reading_prefix_cache", "extra_args", "structured_outputs",
}  # fmt: skip

WITHOUT_MEANING = {
    "spaces_between_special_tokens": "a matter of slow tokenizers",
    "output_kind": "overwritten by the server (wire-protocol 2.7)",
    "skip_clone": "internal to the client's engine",
    "output_text_buffer_length": "internal to the client's engine",
}

TOP_LEVEL_HONOURED = {
    "token_ids", "sampling_params", "request_id", "features", "model", "return_token_ids",
    "output_mode", "stream", "stream_options", "cache_salt", "kv_transfer_params",
    "ec_transfer_params", "resume_token_ids", "reasoning_ended", "reasoning_end",
}  # fmt: skip
TOP_LEVEL_REFUSED = {"content_parts", "priority"}
TOP_LEVEL_WITHOUT_MEANING = {
    "token_offsets": "informative (wire-protocol 2.1)",
    "reasoning_parser_kwargs": "render says what ends the reasoning (reasoning_end)",
}


def asked(token_ids: list[int] | None = None, **params: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=token_ids or [5, 6], sampling_params=SamplingParams(**params))


def test_no_parameter_of_the_contract_is_forgotten() -> None:
    groups = [HONOURED, set(WITHOUT_MEANING), set(UNSUPPORTED)]
    assert set().union(*groups) == set(SamplingParams.__struct_fields__)
    assert sum(map(len, groups)) == len(SamplingParams.__struct_fields__)
    top = [TOP_LEVEL_HONOURED, TOP_LEVEL_REFUSED, set(TOP_LEVEL_WITHOUT_MEANING)]
    assert set().union(*top) == set(GenerateRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [(None, 0, 62), (None, 10, 10), (7, 10, 7), (500, 0, 62), (16, 0, 16)],
)
def test_max_tokens_is_the_requests_or_the_models_or_what_is_left(
    given: int | None, default: int, expected: int
) -> None:
    shape = ModelShape(8, 1, 1, 8, 100, 64, 0, frozenset({2}), default)
    assert admit(asked(max_tokens=given), shape, LIMITS).stop.max_tokens == expected


def test_the_models_eos_ends_a_choice_unless_ignored() -> None:
    assert admit(asked(), SHAPE, LIMITS).stop.eos == {2}
    assert admit(asked(ignore_eos=True), SHAPE, LIMITS).stop.eos == frozenset()


def test_min_tokens_bans_every_id_that_would_end_it() -> None:
    admitted = admit(asked(min_tokens=3, stop_token_ids=[7, 999, -1]), SHAPE, LIMITS)
    assert admitted.banned == {2, 7}
    assert admitted.stop.stop == {7}
    assert admit(asked(), SHAPE, LIMITS).banned == frozenset()


def test_a_request_without_a_seed_gets_its_own() -> None:
    seeds = {admit(asked(seed=seed), SHAPE, LIMITS).seed for seed in (None, None, -1)}
    assert len(seeds) == 3
    assert admit(asked(seed=4), SHAPE, LIMITS).seed == 4
    assert admit(asked(), SHAPE, Limits(("m",), 64, 4, seed=9)).seed == 9
