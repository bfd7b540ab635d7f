"""The scale-out endpoints over HTTP, as clients that are not ours see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from protocol.generate import GenerateRequest
from tests.workers.conftest import RunningWorker, StartWorker
from tests.workers.prompts import picture, request, text

WORDS = {f" w{n}": n for n in range(320)}


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=20) as client:
        yield client


@pytest.fixture
def with_tokenizer(checkpoint: Path) -> Path:
    """The checkpoint with a tokenizer in which token n reads ` wn`."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token=" w0"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return checkpoint


def as_json(asked: GenerateRequest, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(asked)
    return {k: v for k, v in (body | fields).items() if v is not None}


async def post(
    http: httpx2.AsyncClient, worker: RunningWorker, body: Any, **headers: str
) -> httpx2.Response:
    url = f"{worker.replica.http}/inference/v1/generate"
    return await http.post(url, json=body, headers=headers)


async def events(
    http: httpx2.AsyncClient, worker: RunningWorker, body: dict[str, Any]
) -> list[Any]:
    response = await post(http, worker, body | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_an_answer_has_every_key_of_the_contract(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all")
    body = as_json(request(text(1), logprobs=1, max_tokens=2, ignore_eos=True), request_id="abc")
    answer = (await post(http, worker, body)).json()
    assert set(answer) == {
        "request_id", "model", "created", "usage", "prompt_logprobs", "prompt_token_id_logprobs",
        "prompt_token_ids", "mm_placeholders", "metrics", "kv_transfer_params",
        "ec_transfer_params", "output_mode", "choices",
    }  # fmt: skip
    assert (answer["request_id"], answer["model"]) == ("generate-tokens-abc", "tiny")
    assert answer["usage"] == {
        "prompt_tokens": 12, "total_tokens": 14, "completion_tokens": 2,
        "prompt_tokens_details": None, "completion_tokens_details": None,
    }  # fmt: skip
    choice = answer["choices"][0]
    assert set(choice) == {
        "index", "finish_reason", "stop_reason", "token_ids", "routed_experts", "sampling_mask",
        "weight_versions", "logprobs",
    }  # fmt: skip
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]
    entry = choice["logprobs"]["content"][0]
    assert set(entry) == {"token_id", "logprob", "rank", "top_logprobs"}
    assert entry["top_logprobs"][0] == {k: entry[k] for k in ("token_id", "logprob", "rank")}


async def test_a_stream_says_what_the_answer_says(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all")
    body = as_json(
        request(text(1), picture(1), max_tokens=5, ignore_eos=True, return_token_ids=True)
    )
    whole = (await post(http, worker, body)).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(http, worker, body | {"stream_options": options})
    *deltas, usage = chunks
    assert [t for d in deltas for t in d["choices"][0]["token_ids"]] == (
        whole["choices"][0]["token_ids"]
    )
    assert whole["prompt_token_ids"] == body["token_ids"] == deltas[0]["prompt_token_ids"]
    assert whole["mm_placeholders"] == {"image": [{"offset": 13, "length": 6}]}
    assert "prompt_token_ids" not in deltas[1]
    assert deltas[-1]["choices"][0]["finish_reason"] == "length"
    assert deltas[0]["usage"]["completion_tokens"] >= 1
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 20, "total_tokens": 25, "completion_tokens": 5}
    assert "metrics" not in usage


async def test_the_encode_role_answers_documented_descriptors_and_no_token(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    """The client of the Renderer API document, from encode to prefill_decode."""
    encode, worker = await start_worker("encode"), await start_worker("prefill_decode")
    all_ = await start_worker("all")
    shown = picture(1)
    body = as_json(request(text(1, 4), shown, shown, max_tokens=3, ignore_eos=True))
    features = body["features"]
    encoded = (
        await post(http, encode, body | {"features": without(features, "mm_metadata")})
    ).json()
    assert encoded["choices"][0]["token_ids"] == []
    assert encoded["choices"][0]["finish_reason"] == "stop"
    assert encoded["choices"][0]["weight_versions"] == []
    assert encoded["usage"]["completion_tokens"] == 0
    params = encoded["ec_transfer_params"]
    assert [item["mm_hash"] for item in params["ec_items"]] == [shown.mm_hash]
    assert params["ec_items"][0]["peer_host"] == "127.0.0.1"
    split = body | {"features": without(features, "kwargs_data"), "ec_transfer_params": params}
    answer = (await post(http, worker, split)).json()
    whole = (await post(http, all_, body)).json()
    assert answer["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert worker.metric("encoder_input_bytes_total", source="inline") == 0
    assert (
        worker.metric("items_total", source="ec") + worker.metric("items_total", source="cache")
        == 2
    )


def without(features: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in features.items() if key != name and value is not None}


async def test_a_text_request_to_encode_succeeds_with_nothing(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    encode = await start_worker("encode")
    body = as_json(request(text(1, 4), n=2, temperature=1.0))
    answer = (await post(http, encode, body)).json()
    assert answer["ec_transfer_params"] is None
    assert [choice["token_ids"] for choice in answer["choices"]] == [[], []]
    streamed = await events(http, encode, body)
    assert [chunk["choices"][0]["finish_reason"] for chunk in streamed] == ["stop", "stop"]


async def test_prefill_and_decode_over_http(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    prefill, decode = await start_worker("prefill"), await start_worker("decode")
    body = as_json(request(text(1, 20), max_tokens=4, ignore_eos=True))
    first = (await post(http, prefill, body)).json()
    assert len(first["choices"][0]["token_ids"]) == 1
    assert first["choices"][0]["finish_reason"] == "length"
    rest = (
        await post(http, decode, body | {"kv_transfer_params": first["kv_transfer_params"]})
    ).json()
    alone = (await post(http, decode, body)).json()
    assert (
        first["choices"][0]["token_ids"] + rest["choices"][0]["token_ids"]
        == (alone["choices"][0]["token_ids"])
    )
    await prefill.until_idle()


async def test_metadata_without_ec_params_is_400_with_the_contracts_message(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    prefill = await start_worker("prefill")
    body = as_json(request(picture(1)))
    body["features"] = without(body["features"], "kwargs_data")
    response = await post(http, prefill, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "metadata-only multimodal items require ec_transfer_params" in error["message"]
    assert error["code"] == 400


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"token_ids": [], "sampling_params": {}}, 400, "body"),
        ({"token_ids": [1, -5], "sampling_params": {}}, 400, "body"),
        ({"token_ids": [1]}, 400, "body"),
        ({"token_ids": "x", "sampling_params": {}}, 400, "body.token_ids"),
        ({"token_ids": [999], "sampling_params": {}}, 400, "token_ids"),
        ({"token_ids": [1], "sampling_params": {"logit_bias": {"1": 2}}}, 400,
         "sampling_params.logit_bias"),
        ({"token_ids": [1], "sampling_params": {}, "priority": 1}, 400, "priority"),
        ({"token_ids": [1], "sampling_params": {}, "model": "x"}, 404, "model"),
        ({"token_ids": [1], "sampling_params": {}, "output_mode": "text"}, 400, "output_mode"),
        ({"token_ids": [1], "sampling_params": {"stop": "x"}}, 400, "sampling_params.stop"),
    ],
)  # fmt: skip
async def test_bad_bodies_are_4xx_and_name_the_field(
    start_worker: StartWorker,
    http: httpx2.AsyncClient,
    checkpoint: Path,
    body: dict[str, Any],
    status: int,
    param: str,
) -> None:
    (checkpoint / "tokenizer.json").unlink(missing_ok=True)
    worker = await start_worker("all")
    for stream in (False, True):
        response = await post(http, worker, body | {"stream": stream})
        assert response.status_code == status
        assert response.json()["error"]["param"] == param


async def test_stop_strings_cut_the_text_and_keep_the_tokens(
    start_worker: StartWorker, http: httpx2.AsyncClient, with_tokenizer: Path
) -> None:
    worker = await start_worker("all")
    body = as_json(request(text(1), max_tokens=8, ignore_eos=True, logprobs=1, output_mode="text"))
    whole = (await post(http, worker, body)).json()["choices"][0]
    ids = whole["token_ids"]
    assert whole["text"] == "".join(f" w{n}" for n in ids)
    entry = whole["logprobs"]["content"][0]
    assert entry["token"] == f" w{ids[0]}"
    assert entry["bytes"] == list(entry["token"].encode())
    stop = f" w{ids[2]} w{ids[3]}"
    stopping = body | {"sampling_params": body["sampling_params"] | {"stop": [stop]}}
    cut = (await post(http, worker, stopping)).json()["choices"][0]
    assert cut["text"] == whole["text"].partition(stop)[0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["token_ids"] == ids[: len(cut["token_ids"])]
    assert len(cut["token_ids"]) in (2, 3, 4)
    chunks = await events(http, worker, stopping)
    assert "".join(c["choices"][0]["text"] for c in chunks) == cut["text"]
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    await worker.until_idle()


async def test_several_choices_are_told_apart_and_are_repeatable(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all")
    body = as_json(request(text(1), n=3, temperature=1.0, seed=5, max_tokens=4, ignore_eos=True))
    answer = (await post(http, worker, body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    tokens = [tuple(choice["token_ids"]) for choice in answer["choices"]]
    assert len(set(tokens)) == 3
    assert answer["usage"]["completion_tokens"] == 12
    chunks = await events(http, worker, body)
    streamed: dict[int, list[int]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [tuple(streamed[index]) for index in range(3)] == tokens


async def test_abort_by_response_id_ends_a_request_with_its_partial_tokens(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all")
    body = as_json(request(text(1), max_tokens=490, ignore_eos=True), request_id="r1", stream=True)
    abort = f"{worker.replica.http}/inference/v1/abort_requests"
    url = f"{worker.replica.http}/inference/v1/generate"
    async with http.stream("POST", url, json=body) as response:
        seen: list[Any] = []
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == 1:
                    unknown = await http.post(abort, json={"request_ids": ["r1", "nobody"]})
                    assert unknown.status_code == 200
                    done = await http.post(abort, json={"request_ids": "generate-tokens-r1"})
                    assert (done.status_code, done.content) == (200, b"")
    assert seen[-1]["choices"][0]["finish_reason"] == "abort"
    assert seen[-1]["choices"][0]["token_ids"] == []
    assert len(seen) < 490
    await worker.until_idle()
    assert (await http.post(abort, json={})).status_code == 400
    assert (await http.post(abort, content=b"{")).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_leaves_nothing_behind(
    start_worker: StartWorker, http: httpx2.AsyncClient, stream: bool
) -> None:
    worker = await start_worker("all")
    body = as_json(request(text(1), max_tokens=490, ignore_eos=True), stream=stream)
    url = f"{worker.replica.http}/inference/v1/generate"
    if stream:
        async with http.stream("POST", url, json=body) as response:
            await anext(response.aiter_bytes())
    else:
        with pytest.raises(httpx2.ReadTimeout):
            await http.post(url, json=body, timeout=0.15)
    await worker.until_idle()
    assert worker.metric("requests_total", call="generate", outcome="aborted") == 1


async def test_scale_out_endpoints_are_off_unless_enabled(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all", enable_scale_out=False)
    response = await post(http, worker, {})
    assert response.status_code == 403
    assert "--enable-scale-out" in response.json()["error"]["message"]
    abort = await http.post(f"{worker.replica.http}/inference/v1/abort_requests", json={})
    assert abort.status_code == 403


async def test_the_api_key_guards_all_but_the_open_paths(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("all", api_keys=("secret",))
    base = worker.replica.http
    for path in ("/health", "/live", "/ping", "/version", "/metrics"):
        assert (await http.get(base + path)).status_code == 200, path
    assert (await http.get(f"{base}/v1/models")).json() == {"error": "Unauthorized"}
    assert (await post(http, worker, {})).status_code == 401
    body = as_json(request(text(1), max_tokens=1))
    allowed = await post(http, worker, body, authorization="Bearer secret")
    assert allowed.status_code == 200


async def test_models_and_metrics_say_what_is_served(
    start_worker: StartWorker, http: httpx2.AsyncClient
) -> None:
    worker = await start_worker("prefill", max_model_len=256)
    card = (await http.get(f"{worker.replica.http}/v1/models")).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 256)
    metrics = (await http.get(f"{worker.replica.http}/metrics")).text
    assert "triptych_worker_kv_blocks_used 0.0" in metrics
    assert "triptych_ec_store_pinned 0.0" in metrics
