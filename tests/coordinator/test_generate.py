"""`/inference/v1/generate`: the pipeline from encode on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.coordinator.conftest import FUSED, SPLIT, Stage, Start, events
from tests.coordinator.stub_words import eventually, expected

PROMPT = [2, 9, 9, 9, 9, 30]


def body(**options: Any) -> dict[str, Any]:
    features = {
        "mm_hashes": {"image": ["a"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 4}]},
        "kwargs_data": {"image": ["gA=="]},
        "mm_metadata": {"image": ["gA=="]},
    }
    base = {
        "token_ids": PROMPT,
        "features": features,
        "sampling_params": {"max_tokens": 5, "temperature": 0},
    }
    return {**base, **options}


async def post(stage: Stage, **options: Any) -> Any:
    return await stage.client.post("/inference/v1/generate", json=body(**options))


@pytest.mark.parametrize("roles", [SPLIT[1:], FUSED[1:]])
async def test_runs_from_encode_without_a_renderer(start: Start, roles: Any) -> None:
    async with start(roles, enable_scale_out=True) as stage:
        answer = (await post(stage, request_id="r1")).json()
        assert answer["choices"][0]["token_ids"] == expected(PROMPT, 5)
        assert answer["request_id"] == "generate-tokens-r1"
        encode = next(call for name, call in stage.cluster.calls if name == "encode")
        assert encode.items[0].text == "gA=="
        for name, call in stage.cluster.calls:
            if name in ("prefill", "generate"):
                assert call.features.kwargs_data is None
        await stage.idle()


async def test_streams_token_deltas(start: Start) -> None:
    async with start(SPLIT, enable_scale_out=True, http=True) as stage:
        response = await post(
            stage, stream=True, stream_options={"include_usage": True}, return_token_ids=True
        )
        chunks = events(response.text)
        tokens = [t for c in chunks for choice in c["choices"] for t in choice["token_ids"]]
        assert tokens == expected(PROMPT, 5)
        assert chunks[0]["prompt_token_ids"] == PROMPT
        assert chunks[-1]["usage"]["completion_tokens"] == 5


async def test_text_mode_and_stop_strings_go_through_the_derenderer(start: Start) -> None:
    async with start(SPLIT, enable_scale_out=True) as stage:
        third = expected(PROMPT, 3)[2]
        answer = (
            await post(
                stage,
                output_mode="text",
                sampling_params={
                    "max_tokens": 9,
                    "temperature": 0,
                    "stop": f"t{third}",
                    "logprobs": 1,
                },
            )
        ).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["stop_reason"] == f"t{third}"
        assert choice["text"] == "".join(f" t{t}" for t in expected(PROMPT, 2))
        assert choice["token_ids"] == expected(PROMPT, 3)
        assert choice["logprobs"]["content"][0]["token"] == f" t{expected(PROMPT, 1)[0]}"
        await stage.idle()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ec_transfer_params": {"ec_items": []} | {"x": 1}}, "ec_transfer_params"),
        ({"kv_transfer_params": {"x": 1}}, "kv_transfer_params"),
        (
            {"sampling_params": {"extra_args": {"kv_transfer_params": {"x": 1}}}},
            "kv_transfer_params",
        ),
        ({"resume_token_ids": [1]}, "resume_token_ids"),
        ({"token_ids": []}, "token_ids"),
    ],
)
async def test_refuses_what_is_not_the_clients_to_say(
    start: Start, change: dict[str, Any], field: str
) -> None:
    async with start(SPLIT, enable_scale_out=True) as stage:
        response = await post(stage, **change)
        assert response.status_code == 400
        assert field in str(response.json()["error"])


async def test_items_without_kwargs_are_refused(start: Start) -> None:
    async with start(SPLIT, enable_scale_out=True) as stage:
        asked = body()
        del asked["features"]["kwargs_data"]
        del asked["features"]["mm_metadata"]
        response = await stage.client.post("/inference/v1/generate", json=asked)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "features.kwargs_data.image.0"


async def test_scale_out_endpoints_are_off_by_default(start: Start) -> None:
    async with start(()) as stage:
        for path in (
            "/inference/v1/generate",
            "/inference/v1/abort_requests",
            "/v1/completions/render",
        ):
            response = await stage.client.post(path, json={})
            assert response.status_code == 403
            assert "--enable-scale-out" in response.json()["error"]["message"]


async def test_abort_ends_the_request_with_what_it_has(start: Start) -> None:
    async with start(SPLIT, enable_scale_out=True) as stage:
        stage.of("decode")[0].gate.clear()
        running = asyncio.create_task(post(stage, request_id="r1"))
        await eventually(lambda: stage.cluster.running == 1)
        response = await stage.client.post(
            "/inference/v1/abort_requests", json={"request_ids": ["generate-tokens-r1", "other"]}
        )
        assert response.status_code == 200
        answer = (await running).json()
        assert answer["choices"][0]["finish_reason"] == "abort"
        assert answer["choices"][0]["token_ids"] == expected(PROMPT, 1)
        await stage.idle()
