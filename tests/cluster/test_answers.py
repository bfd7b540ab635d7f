"""The official client asks about drawings the model has never seen, and gets the right words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from examples.drawings import Example, Kind
from tests.cluster.asking import chat, message, unseen
from tests.cluster.fleet import MODEL, TOPOLOGIES, Fleet
from tests.cluster.processes import ROOT


@pytest.fixture(params=TOPOLOGIES)
def client(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[openai.OpenAI]:
    """The official client of each topology's front door."""
    with connected(fleet, request.param) as made:
        yield made


def connected(fleet: Fleet, topology: str = "epd") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{fleet.url(topology)}/v1", api_key="none", max_retries=0, timeout=60.0
    )


def ask(client: openai.OpenAI, example: Example) -> str:
    answer = client.chat.completions.create(**cast("Any", chat(example)))
    return answer.choices[0].message.content or ""


def ask_streaming(client: openai.OpenAI, example: Example) -> str:
    chunks = client.chat.completions.create(**cast("Any", chat(example, stream=True)))
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


ONE = unseen("describe", 5, seed=11)
TWO = unseen("which", 5, images=2, seed=13)
FOUR = unseen("which", 5, images=4, seed=12)
NONE = unseen("text", 5, seed=14)


@pytest.mark.parametrize(
    "examples", [ONE, TWO, FOUR, NONE], ids=["one picture", "two", "four", "none"]
)
def test_the_answer_is_right_streaming_and_not(
    client: openai.OpenAI, examples: list[Example]
) -> None:
    answers = [ask(client, example) for example in examples]
    assert [ask_streaming(client, example) for example in examples] == answers
    misses = [
        (e.prompt, e.answer, a) for e, a in zip(examples, answers, strict=True) if e.answer != a
    ]
    assert len(misses) <= 1, misses


@pytest.mark.parametrize(
    ("kind", "images", "wrong"),
    [
        ("describe", None, 1),
        ("colour", None, 1),
        ("count", None, 1),
        ("which", 4, 2),
        ("which", 2, 2),
        ("text", None, 1),
    ],
)
def test_thirty_unseen_drawings_of_a_kind(
    fleet: Fleet, kind: Kind, images: int | None, wrong: int
) -> None:
    examples = unseen(kind, 30, images=images, seed=20)
    with connected(fleet) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda example: ask(client, example), examples))
    misses = [
        (example.prompt, example.answer, answer)
        for example, answer in zip(examples, answers, strict=True)
        if answer != example.answer
    ]
    assert len(misses) <= wrong, misses


def test_a_turn_may_follow_another(client: openai.OpenAI) -> None:
    example = unseen("describe", 1, seed=15)[0]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=cast(
            "Any",
            [
                message(example.prompt, example.images),
                {"role": "assistant", "content": example.answer},
                message("Describe this image.", ONE[0].images),
            ],
        ),
        max_tokens=96,
        temperature=0,
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_usage_counts_the_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **cast("Any", chat(ONE[0], extra_body={"return_token_ids": True}))
    )
    assert answer.usage is not None
    tokens = cast("Any", answer.choices[0]).token_ids
    assert answer.usage.completion_tokens == len(tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(tokens)


def test_a_stream_ends_with_usage_when_it_is_asked_for(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**cast("Any", chat(ONE[0])))
    chunks = list(
        client.chat.completions.create(
            **cast("Any", chat(ONE[0], stream=True, stream_options={"include_usage": True}))
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
        "stop"
    ]


def test_max_tokens_is_kept(client: openai.OpenAI) -> None:
    example = Example((), "Count to fifty.", "")
    for stream in (False, True):
        body = chat(example, max_tokens=3, stream=stream)
        if stream:
            chunks = list(client.chat.completions.create(**cast("Any", body)))
            reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
            assert reasons[-1] == "length"
        else:
            answer = client.chat.completions.create(**cast("Any", body))
            assert answer.usage is not None
            assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == (
                "length",
                3,
            )


def test_a_stop_string_cuts_the_text(client: openai.OpenAI) -> None:
    example = Example((), "Count to fifty.", "")
    body = chat(example, stop=[" 5"], max_tokens=200)
    answer = client.chat.completions.create(**cast("Any", body))
    assert answer.choices[0].message.content == "1 2 3 4"
    assert answer.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**cast("Any", body | {"stream": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "1 2 3 4"


def test_several_choices_are_answered(client: openai.OpenAI) -> None:
    body = chat(ONE[0], n=3, temperature=0.7, seed=5)
    answer = client.chat.completions.create(**cast("Any", body))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all(choice.message.content for choice in answer.choices)
    again = client.chat.completions.create(**cast("Any", body))
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]


def test_a_completion_of_a_prompt(client: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nCount to ten.<|im_end|>\n<|im_start|>assistant\n"
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, temperature=0)
    assert answer.choices[0].text == "1 2 3 4 5 6 7 8 9 10"
    chunks = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == answer.choices[0].text


@pytest.mark.parametrize("options", [[], ["--stream"]], ids=["whole", "stream"])
def test_the_chat_example_prints_the_answer(
    fleet: Fleet, tmp_path: Path, options: list[str]
) -> None:
    example = FOUR[0]
    with connected(fleet) as client:
        expected = ask(client, example)
    files = []
    for index, image in enumerate(example.images):
        files.append(str(tmp_path / f"{index}.png"))
        image.save(files[-1])
    arguments = ["--url", f"{fleet.url()}/v1", "--prompt", example.prompt, *options, *files]
    done = subprocess.run(
        [sys.executable, "-m", "examples.chat_with_image", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{expected}\n"


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
