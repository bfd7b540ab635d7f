"""`/inference/v1/generate` messages: every rule of wire-protocol §2.1 and §2.3."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.generate import GenerateChoice, GenerateRequest, GenerateResponse, Usage


def request(**fields: Any) -> GenerateRequest:
    raw = {"token_ids": [1, 2, 3, 4], "sampling_params": {}, **fields}
    return msgspec.json.decode(json.dumps(raw), type=GenerateRequest)


def image(**columns: Any) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": ["a"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 3}]},
        **columns,
    }


METADATA_ONLY = "metadata-only multimodal items require ec_transfer_params"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": []}, "token_ids must not be empty"),
        ({"token_ids": [1, -1]}, "token_ids must not contain negative values"),
        ({"token_ids": [1, 2.5]}, "Expected `int`"),
        (
            {"features": image(), "content_parts": []},
            "content_parts and features are mutually exclusive",
        ),
        (
            {"cache_salt": ""},
            "Parameter 'cache_salt' must be a non-empty string if provided.",
        ),
        (
            {"output_mode": "text", "sampling_params": {"detokenize": False}},
            "output_mode='text' requires sampling_params.detokenize to be true",
        ),
        ({"output_mode": "json"}, "Invalid enum value 'json'"),
        (
            {"token_ids": [1, 2, 3], "features": image()},
            "mm_placeholders must remain within the token_ids sequence",
        ),
        ({"features": image(mm_metadata={"image": ["gA=="]})}, METADATA_ONLY),
        (
            {"features": image(mm_metadata={"image": ["gA=="]}), "ec_transfer_params": {}},
            METADATA_ONLY,
        ),
        (
            {
                "features": image(mm_metadata={"image": ["gA=="]}, kwargs_data={"image": [None]}),
                "kv_transfer_params": {"a": 1},
            },
            METADATA_ONLY,
        ),
        (
            {
                "features": image(mm_metadata={"image": ["gA=="]}),
                "sampling_params": {"extra_args": {"ec_transfer_params": {"a": 1}}},
            },
            METADATA_ONLY,
        ),
        (
            {"reasoning_parser_kwargs": {"surprise": 1}},
            "Object contains unknown field `surprise`",
        ),
        ({"priority": 2**63}, "Expected `int` <= 9223372036854775807"),
        ({"token_ids": [2**63]}, "Expected `int` <= 9223372036854775807"),
    ],
)
def test_each_rule_is_refused_with_its_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        request(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("missing", ["token_ids", "sampling_params"])
def test_required_fields_are_required(missing: str) -> None:
    raw = {"token_ids": [1], "sampling_params": {}}
    del raw[missing]
    with pytest.raises(msgspec.ValidationError, match=f"missing required field `{missing}`"):
        msgspec.convert(raw, GenerateRequest)


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_salts_outside_the_contract_are_refused(salt: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        request(cache_salt=salt)
    assert str(caught.value).startswith(
        "Parameter 'cache_salt' must be at most 128 characters and must not contain "
        "'@', '/', '\\\\', or NUL."
    )


def test_a_salt_of_128_characters_is_accepted() -> None:
    assert request(cache_salt="x" * 128).cache_salt == "x" * 128


def test_unknown_keys_are_ignored_at_every_level() -> None:
    read = request(
        surprise=1, sampling_params={"surprise": 2}, features=image(surprise=3), stream_options={}
    )
    assert read.token_ids == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "fields",
    [
        {"features": image(kwargs_data={"image": ["gQ=="]})},
        {"features": image(kwargs_data={"image": ["gQ=="]}, mm_metadata={"image": ["gA=="]})},
        {"features": image(mm_metadata={"image": ["gA=="]}), "ec_transfer_params": {"a": {}}},
        {
            "features": image(
                mm_metadata={"image": ["gA=="]},
                kwargs_handles={"image": [{"mm_hash": "a", "peer_host": "h"}]},
            )
        },
        {"features": image()},
    ],
)
def test_complete_items_are_accepted(fields: dict[str, Any]) -> None:
    assert request(**fields).features is not None


def test_a_placeholder_may_end_with_the_prompt() -> None:
    assert request(features=image(kwargs_data={"image": ["gQ=="]})).features


def test_transfer_params_are_read_from_both_places_the_top_level_first() -> None:
    inner = {"extra_args": {"ec_transfer_params": {"e": 1}, "kv_transfer_params": {"k": 1}}}
    read = request(sampling_params=inner)
    assert (read.ec_params, read.kv_params) == ({"e": 1}, {"k": 1})
    read = request(sampling_params=inner, ec_transfer_params={"E": 1}, kv_transfer_params={"K": 1})
    assert (read.ec_params, read.kv_params) == ({"E": 1}, {"K": 1})
    read = request()
    assert (read.ec_params, read.kv_params) == (None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"content_parts": []}, "content_parts"),
        ({"priority": 1}, "priority"),
        ({"request_id": "with space"}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"request_id": "new\nline"}, "request_id"),
        ({"sampling_params": {"logit_bias": {"1": 2.0}}}, "sampling_params.logit_bias"),
    ],
)
def test_what_the_engine_does_not_honour_is_refused_naming_it(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields).refuse_unsupported()
    assert caught.value.param == param


def test_a_response_writes_every_key_of_the_contract() -> None:
    response = GenerateResponse(
        request_id="generate-tokens-a",
        model="m",
        created=1,
        usage=Usage.of(8, 2),
        choices=[GenerateChoice(index=0, finish_reason="length", token_ids=[5, 6])],
    )
    assert msgspec.to_builtins(response) == {
        "request_id": "generate-tokens-a",
        "model": "m",
        "created": 1,
        "usage": {
            "prompt_tokens": 8,
            "total_tokens": 10,
            "completion_tokens": 2,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [5, 6],
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": None,
                "logprobs": None,
            }
        ],
    }


@pytest.mark.parametrize(
    "logprob",
    [
        {"token_id": 210, "logprob": -6.1, "rank": 1},
        {"token_id": 210, "logprob": -9999.0, "rank": None, "top_logprobs": []},
        {"token_id": 210, "logprob": -6.1, "token": " red", "bytes": [32, 114, 101, 100]},
    ],
)
def test_responses_with_logprobs_are_read(logprob: dict[str, Any]) -> None:
    raw = {
        "request_id": "a",
        "model": "m",
        "created": 1,
        "usage": {},
        "choices": [{"index": 0, "token_ids": [210], "logprobs": {"content": [logprob]}}],
    }
    read = msgspec.json.decode(json.dumps(raw), type=GenerateResponse)
    assert read.choices[0].logprobs is not None
    assert read.choices[0].logprobs.content[0].token_id == 210


def test_requests_survive_the_wire_between_our_processes() -> None:
    sent = request(
        features=image(kwargs_data={"image": ["gQ=="]}),
        sampling_params={"max_tokens": 3, "stop": ["x"]},
        resume_token_ids=[7],
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=GenerateRequest) == sent
