"""Splitting a model over processes, and batching, must not change its answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest

from tests.cluster.asking import chat, mixed
from tests.cluster.fleet import TOPOLOGIES, Fleet

REQUESTS = 20
AT_ONCE = 16
TOLERANCE = 1e-4


class Answer(NamedTuple):
    """What must agree."""

    tokens: list[int]
    logprobs: list[float]
    alternatives: list[list[float]]
    text: str


def bodies() -> list[dict[str, Any]]:
    """Mixed requests: no picture, one, several, with and without penalties, cut and not."""
    made = [
        chat(example, logprobs=True, top_logprobs=3, return_token_ids=True)
        for example in mixed(REQUESTS)
    ]
    made[3]["repetition_penalty"] = 1.2
    made[6]["frequency_penalty"] = 0.5
    made[9]["max_tokens"] = 5
    made[12]["presence_penalty"] = 1.0
    made[15]["min_tokens"] = 30
    return made


@pytest.fixture(scope="module")
def client() -> Any:
    with httpx.Client(timeout=60.0, limits=httpx.Limits(max_connections=AT_ONCE)) as made:
        yield made


def ask(client: httpx.Client, url: str, body: dict[str, Any]) -> Answer:
    response = client.post(f"{url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["token_ids"]
    return Answer(
        choice["token_ids"],
        [entry["logprob"] for entry in content],
        [[top["logprob"] for top in entry["top_logprobs"]] for entry in content],
        choice["message"]["content"],
    )


@pytest.fixture(scope="module")
def reference(fleet: Fleet, client: httpx.Client) -> list[Answer]:
    """Each request alone on one worker that does everything."""
    return [ask(client, fleet.url("all"), body) for body in bodies()]


def assert_same(answers: list[Answer], reference: list[Answer]) -> None:
    for index, (answer, expected) in enumerate(zip(answers, reference, strict=True)):
        assert answer.tokens == expected.tokens, (index, answer.text, expected.text)
        assert answer.text == expected.text
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE), index
        for got, wanted in zip(answer.alternatives, expected.alternatives, strict=True):
            assert got == pytest.approx(wanted, abs=TOLERANCE), index


def test_every_token_has_its_logprob(reference: list[Answer]) -> None:
    for answer in reference:
        assert len(answer.tokens) == len(answer.logprobs) == len(answer.alternatives)
        assert all(value <= 0 for value in answer.logprobs)
        assert all(len(top) == 3 for top in answer.alternatives)


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if name != "all"])
def test_alone_a_split_model_answers_as_one_worker(
    fleet: Fleet, client: httpx.Client, reference: list[Answer], topology: str
) -> None:
    assert_same([ask(client, fleet.url(topology), body) for body in bodies()], reference)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_sixteen_at_a_time_the_answers_are_the_same(
    fleet: Fleet, client: httpx.Client, reference: list[Answer], topology: str
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda body: ask(client, fleet.url(topology), body), bodies()))
    assert_same(answers, reference)
