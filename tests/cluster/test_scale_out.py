"""Render, generate and derender through the coordinator and by hand give the same answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from examples.drawings import Example
from tests.cluster.asking import chat, unseen
from tests.cluster.fleet import TOPOLOGIES, Fleet
from tests.cluster.processes import eventually

EXAMPLE = unseen("which", 1, images=3, seed=71)[0]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60.0) as made:
        yield made


def answered(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def expected(fleet: Fleet, http: httpx.Client) -> dict[str, Any]:
    """The answer of the coordinator's chat endpoint."""
    body: dict[str, Any] = answered(
        http.post(f"{fleet.url()}/v1/chat/completions", json=chat(EXAMPLE, return_token_ids=True))
    )
    return body


@pytest.fixture(scope="module")
def rendered(fleet: Fleet, http: httpx.Client) -> dict[str, Any]:
    body: dict[str, Any] = answered(
        http.post(f"{fleet.render.http}/v1/chat/completions/render", json=chat(EXAMPLE))
    )
    return body


def test_the_coordinator_hands_render_through(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    through = answered(http.post(f"{fleet.url()}/v1/chat/completions/render", json=chat(EXAMPLE)))
    assert through | {"request_id": ""} == rendered | {"request_id": ""}
    assert "kwargs_handles" not in json.dumps(through)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_generate_runs_the_pipeline_from_encode(
    fleet: Fleet,
    http: httpx.Client,
    rendered: dict[str, Any],
    expected: dict[str, Any],
    topology: str,
) -> None:
    answer = answered(http.post(f"{fleet.url(topology)}/inference/v1/generate", json=rendered))
    assert answer["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    assert answer["request_id"] == f"generate-tokens-{rendered['request_id']}"


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("server", ["coordinator", "worker"])
def test_a_generate_stream_has_the_same_tokens(
    fleet: Fleet,
    http: httpx.Client,
    rendered: dict[str, Any],
    expected: dict[str, Any],
    server: str,
) -> None:
    base = fleet.url() if server == "coordinator" else fleet.all.http
    body = rendered | {"stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", f"{base}/inference/v1/generate", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response)
    tokens = [t for chunk in chunks for choice in chunk["choices"] for t in choice["token_ids"]]
    assert tokens == expected["choices"][0]["token_ids"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(tokens)


@pytest.mark.parametrize("name", ["ec_transfer_params", "kv_transfer_params"])
def test_a_client_may_not_give_the_coordinator_transfer_params(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], name: str
) -> None:
    response = http.post(f"{fleet.url()}/inference/v1/generate", json=rendered | {name: {"a": 1}})
    assert response.status_code == 400
    assert name in response.text


@pytest.mark.parametrize("through", ["coordinator", "render"])
def test_derender_gives_the_text_of_the_tokens(
    fleet: Fleet,
    http: httpx.Client,
    rendered: dict[str, Any],
    expected: dict[str, Any],
    through: str,
) -> None:
    base = fleet.url() if through == "coordinator" else fleet.render.http
    generated = answered(http.post(f"{fleet.all.http}/inference/v1/generate", json=rendered))
    answer = answered(
        http.post(
            f"{base}/v1/chat/completions/derender",
            json={
                "generate_response": generated,
                "prompt_token_ids": rendered["token_ids"],
                "prompt_tokens": len(rendered["token_ids"]),
                "chat_request": chat(EXAMPLE),
            },
        )
    )
    assert (
        answer["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
    )
    assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_a_stream_is_derendered_chunk_by_chunk(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = rendered | {"stream": True}
    with http.stream("POST", f"{fleet.all.http}/inference/v1/generate", json=body) as response:
        chunks = events(response)
    state = None
    text = ""
    for chunk in chunks:
        done = answered(
            http.post(
                f"{fleet.render.http}/v1/chat/completions/derender",
                json={
                    "stream": True,
                    "generate_chunk": chunk,
                    "stream_state": state,
                    "prompt_token_ids": rendered["token_ids"],
                    "chat_request": chat(EXAMPLE),
                },
            )
        )
        state = done["stream_state"]
        for choice in done["chunk"]["choices"]:
            text += choice["delta"].get("content") or ""
    assert text == expected["choices"][0]["message"]["content"]


def test_a_prompt_of_words_through_every_step_by_hand(fleet: Fleet, http: httpx.Client) -> None:
    prompt = "<|im_start|>user\nCount to ten.<|im_end|>\n<|im_start|>assistant\n"
    (one,) = answered(
        http.post(
            f"{fleet.render.http}/v1/completions/render",
            json={"prompt": prompt, "max_tokens": 40, "temperature": 0},
        )
    )
    assert one["sampling_params"]["max_tokens"] == 40
    generated = answered(http.post(f"{fleet.all.http}/inference/v1/generate", json=one))
    answer = answered(
        http.post(
            f"{fleet.render.http}/v1/completions/derender",
            json={"generate_responses": [generated]},
        )
    )
    assert answer["choices"][0]["text"].strip() == "1 2 3 4 5 6 7 8 9 10"


def test_defaults_are_written_where_the_receiver_has_others(
    fleet: Fleet, http: httpx.Client
) -> None:
    (one,) = answered(http.post(f"{fleet.render.http}/v1/completions/render", json={"prompt": "a"}))
    assert one["sampling_params"]["max_tokens"] == 16
    assert "temperature" in one["sampling_params"]


def test_a_request_is_aborted_by_its_response_id(fleet: Fleet, http: httpx.Client) -> None:
    body = {
        "request_id": "to-abort",
        "token_ids": [1, 2, 3],
        "sampling_params": {"max_tokens": 3000, "ignore_eos": True},
        "stream": True,
    }
    url = f"{fleet.all.http}/inference/v1"
    with http.stream("POST", f"{url}/generate", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["request_id"] == "generate-tokens-to-abort"
        aborted = httpx.post(
            f"{url}/abort_requests", json={"request_ids": ["generate-tokens-to-abort", "other"]}
        )
        assert (aborted.status_code, aborted.content) == (200, b"")
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    last = json.loads(rest[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "abort"
    with eventually(10, "the worker runs nothing") as attempts:
        for _ in attempts:
            if fleet.all.metrics()["triptych_worker_running_requests"] == 0:
                return


def test_responses_render_refuses_what_it_cannot_know(fleet: Fleet, http: httpx.Client) -> None:
    base = f"{fleet.render.http}/v1/responses/render"
    response = http.post(base, json={"input": "Hello!", "previous_response_id": "resp_1"})
    assert response.status_code == 400
    assert "previous_response_id" in response.text


def test_the_same_words_render_alike_in_chat_and_completions(
    fleet: Fleet, http: httpx.Client
) -> None:
    hello = Example((), "Hello!", "")
    chatted = answered(
        http.post(f"{fleet.render.http}/v1/chat/completions/render", json=chat(hello))
    )
    (completed,) = answered(
        http.post(
            f"{fleet.render.http}/v1/completions/render",
            json={"prompt": chatted["token_ids"], "max_tokens": 96, "temperature": 0},
        )
    )
    assert completed["token_ids"] == chatted["token_ids"]
