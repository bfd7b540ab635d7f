"""The path of a request through every topology, over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from protocol.replica import ReplicaStatus, Role
from tests.coordinator.conftest import ALL, FUSED, SPLIT, Start, events
from tests.coordinator.stub_words import eventually, expected


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


@pytest.mark.parametrize("roles", [SPLIT, FUSED, ALL])
@pytest.mark.parametrize("parts", [("hi",), ("image:a", "hi"), ("image:a", "image:b", "image:a")])
async def test_every_topology_gives_the_same_tokens(
    start: Start, roles: tuple[Role, ...], parts: tuple[str, ...]
) -> None:
    async with start(roles) as stage:
        answer = (await stage.chat(*parts, max_tokens=6)).json()
        prompt = [2]
        for part in parts:
            prompt += [9] * 4 if part.startswith("image:") else [10 + ord(c) % 80 for c in part]
        assert answer["choices"][0]["message"]["content"] == words(expected(prompt, 6))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert answer["usage"]["completion_tokens"] == 6
        await stage.idle()


@pytest.mark.parametrize("roles", [SPLIT, FUSED, ALL])
async def test_a_stream_gives_what_the_whole_answer_gives(
    start: Start, roles: tuple[Role, ...]
) -> None:
    async with start(roles, http=True) as stage:
        whole = (await stage.chat("image:a", "hi")).json()
        response = await stage.chat(
            "image:a", "hi", stream=True, stream_options={"include_usage": True}
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response.text)
        text = "".join(c["delta"].get("content", "") for e in chunks for c in e["choices"])
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        await stage.idle()


async def test_a_prefill_is_sent_descriptors_and_no_pixels(start: Start) -> None:
    async with start(SPLIT) as stage:
        await stage.chat("image:a", "image:b", "hi", ec_transfer_params={"ec_items": ["mine"]})
        encodes = [call for name, call in stage.cluster.calls if name == "encode"]
        assert {item.mm_hash for call in encodes for item in call.items} == {"a", "b"}
        assert all(item.handle is not None for call in encodes for item in call.items)
        for name, call in stage.cluster.calls:
            if name in ("prefill", "generate"):
                assert call.features.kwargs_handles is None
                assert call.features.kwargs_data is None
                assert {item["mm_hash"] for item in call.ec_transfer_params["ec_items"]} == {
                    "a",
                    "b",
                }
                assert "ec_transfer_params" not in (call.sampling_params.extra_args or {})


async def test_items_of_a_request_go_to_several_encoders(start: Start) -> None:
    async with start(SPLIT) as stage:
        await stage.chat(*(f"image:{i}" for i in range(6)))
        assert all(replica.served["encode"] >= 2 for replica in stage.of("encode"))


async def test_an_item_is_encoded_once_however_often_it_is_in_the_request(start: Start) -> None:
    async with start(SPLIT) as stage:
        await stage.chat("image:a", "image:a", "image:a")
        assert stage.cluster.encodes == {"a": 1}


async def test_several_choices_come_back_in_order(start: Start) -> None:
    async with start(SPLIT) as stage:
        answer = (await stage.chat("hi", n=3, temperature=1.0, seed=7, max_tokens=4)).json()
        prompt = [2, *(10 + ord(c) % 80 for c in "hi")]
        texts = [choice["message"]["content"] for choice in answer["choices"]]
        assert texts == [words(expected(prompt, 4, 7, i)) for i in range(3)]
        assert answer["usage"]["completion_tokens"] == 12
        await stage.idle()


async def test_a_stop_string_ends_the_choice_and_aborts_decode(start: Start) -> None:
    async with start(SPLIT) as stage:
        prompt = [2, *(10 + ord(c) % 80 for c in "hi")]
        third = expected(prompt, 3)[2]
        answer = (await stage.chat("hi", stop=[f"t{third}"], max_tokens=2000)).json()
        choice = answer["choices"][0]
        assert choice["message"]["content"] == words(expected(prompt, 2))
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", f"t{third}")
        await stage.idle()
        assert stage.cluster.cancelled


async def test_logprobs_reach_the_client(start: Start) -> None:
    async with start(SPLIT) as stage:
        answer = (await stage.chat("hi", logprobs=True, max_tokens=3)).json()
        assert len(answer["choices"][0]["logprobs"]["content"]) == 3


async def test_completions_answer_every_prompt(start: Start) -> None:
    async with start(SPLIT) as stage:
        body = {"prompt": ["hi", "you"], "max_tokens": 4, "n": 2, "temperature": 1, "seed": 3}
        answer = (await stage.client.post("/v1/completions", json=body)).json()
        texts = [choice["text"] for choice in answer["choices"]]
        want = []
        for text in ("hi", "you"):
            prompt = [2, *(10 + ord(c) % 80 for c in text)]
            want += [words(expected(prompt, 4, 3, i)) for i in range(2)]
        assert texts == want
        response = await stage.client.post(
            "/v1/completions",
            json={**body, "stream": True, "stream_options": {"include_usage": True}},
        )
        streamed = ["", "", "", ""]
        for event in events(response.text):
            for choice in event["choices"]:
                streamed[choice["index"]] += choice["text"]
        assert streamed == want
        assert events(response.text)[-1]["usage"]["completion_tokens"] == 16
        await stage.idle()


async def test_health_names_the_missing_stages(start: Start) -> None:
    async with start(("render", "encode", "prefill")) as stage:
        response = await stage.client.get("/health")
        assert response.status_code == 503
        assert response.json()["missing"] == ["decode"]
        await stage.add("decode")
        await stage.ready()
        assert (await stage.client.get("/health")).status_code == 200
        stage.of("encode")[0].say(ReplicaStatus(ready=True, draining=True))
        await eventually(lambda: sum(m.ready for m in stage.server.pool.members()) == 3)
        assert (await stage.client.get("/health")).json()["missing"] == ["encode"]
        assert (await stage.client.get("/live")).status_code == 200


async def test_status_endpoints(start: Start) -> None:
    async with start(SPLIT, api_keys=("k",), http=True) as stage:
        for path in ("/live", "/ping", "/version", "/metrics", "/health"):
            assert (await stage.client.get(path)).status_code == 200
        assert (await stage.client.get("/v1/models")).status_code == 401
        headers = {"Authorization": "Bearer k"}
        card = (await stage.client.get("/v1/models", headers=headers)).json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("stub", 4096)


async def test_an_unknown_model_is_404(start: Start) -> None:
    async with start(SPLIT) as stage:
        response = await stage.chat("hi", model="other")
        assert response.status_code == 404
        assert response.json()["error"]["param"] == "model"


async def test_renders_refusal_keeps_its_status_and_names_the_stage(start: Start) -> None:
    async with start(SPLIT) as stage:
        for stream in (False, True):
            response = await stage.client.post(
                "/v1/chat/completions", json={"messages": [], "stream": stream}
            )
            assert response.status_code == 400
            error = response.json()["error"]
            assert (error["param"], error["stage"]) == ("messages", "render")


async def test_without_replicas_a_request_is_503_with_retry_after(start: Start) -> None:
    async with start(("render", "encode"), stage_wait_s=0.1) as stage:
        response = await stage.chat("hi")
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert "prefill" in response.json()["error"]["message"]


async def test_a_client_that_leaves_cancels_every_stage(start: Start) -> None:
    async with start(SPLIT, http=True) as stage:
        stage.of("decode")[0].gate.clear()
        for stream in (False, True):
            running = asyncio.create_task(stage.chat("image:a", "hi", stream=stream))
            await eventually(lambda: stage.cluster.running == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await stage.idle()
        assert len(stage.cluster.cancelled) == 2


async def test_a_client_that_leaves_during_encode_frees_everything(start: Start) -> None:
    async with start(SPLIT, http=True) as stage:
        for replica in stage.of("encode"):
            replica.gate.clear()
        running = asyncio.create_task(stage.chat("image:a", "hi"))
        await eventually(lambda: sum(r.served["encode"] for r in stage.of("encode")) == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await stage.idle()


async def test_more_answers_than_one_request_may_have_are_refused(start: Start) -> None:
    async with start(SPLIT, max_choices=4) as stage:
        refused = await stage.chat("hi", n=5, temperature=1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        body = {"prompt": ["a", "b", "c"], "n": 2, "temperature": 1}
        assert (await stage.client.post("/v1/completions", json=body)).status_code == 400
        body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 2}
        assert (await stage.client.post("/v1/completions", json=body)).status_code != 400
