"""Answers of a given form: grammars by themselves, and on a worker with the demo model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from protocol.generate import GenerateRequest
from protocol.rpc import GENERATE, PREFILL
from protocol.sampling import SamplingParams
from tests.workers.conftest import StartWorker
from workers.grammar import PARAM, Constraint, Grammars, closed

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo_model"
VOCAB, EOS = 512, 503
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "blue", "green"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["colour", "count", "tags"],
    "additionalProperties": False,
}
CALL = {
    "type": "structural_tag",
    "format": {
        "type": "tags_with_separator",
        "separator": "\n",
        "at_least_one": True,
        "tags": [
            {
                "type": "tag",
                "begin": '<tool_call>\n{"name": "paint", "arguments": ',
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "}\n</tool_call>",
            }
        ],
    },
}
CALLED = re.compile(
    r'<tool_call>\n\{"name": "paint", "arguments": (.*?)\}\n</tool_call>', re.DOTALL
)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(DEMO / "tokenizer.json", VOCAB, [EOS])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def compiled(grammars: Grammars, **form: Any) -> Constraint:
    return asyncio.run(grammars.constraints(form, [0]))[0]


def written(constraint: Constraint, tokenizer: Tokenizer, seed: int) -> str:
    """A random walk through what is allowed, which ends as soon as it may after 30 tokens."""
    random, outputs = np.random.default_rng(seed), list[int]()
    for _ in range(400):
        allowed = np.flatnonzero(constraint.allowed(outputs))
        over = EOS in allowed and (len(allowed) == 1 or len(outputs) > 30)
        token = EOS if over else int(random.choice(allowed[allowed != EOS]))
        if token == EOS:
            return str(tokenizer.decode(outputs, skip_special_tokens=False))
        outputs.append(token)
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_is_json_of_the_schema(
    grammars: Grammars, tokenizer: Tokenizer, seed: int
) -> None:
    for form in ({"json": SCHEMA}, {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}):
        text = written(compiled(grammars, **form), tokenizer, seed)
        jsonschema.validate(json.loads(text), SCHEMA)
        if "disable_any_whitespace" in form:
            assert not re.search(r"[:,]\s", text)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": r"[a-c]{2,3}/\d+"}, r"[a-c]{2,3}/\d+"),
        ({"choice": ["yes", 'no "way"', "maybe\n"]}, 'yes|no "way"|maybe\n'),
        ({"grammar": 'root ::= "a" [0-9]+ "b"'}, r"a[0-9]+b"),
        ({"grammar": 'start: "x" /[yz]{1,4}/'}, r"x[yz]{1,4}"),
    ],
)
def test_whatever_is_drawn_is_of_the_grammar(
    grammars: Grammars, tokenizer: Tokenizer, form: dict[str, Any], pattern: str, seed: int
) -> None:
    assert re.fullmatch(pattern, written(compiled(grammars, **form), tokenizer, seed))


@pytest.mark.parametrize("seed", range(3))
def test_structural_tags_are_calls_with_arguments_of_their_schema(
    grammars: Grammars, tokenizer: Tokenizer, seed: int
) -> None:
    text = written(compiled(grammars, structural_tag=json.dumps(CALL)), tokenizer, seed)
    calls = CALLED.findall(text)
    assert calls
    assert CALLED.sub("", text).strip("\n") == ""
    for arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMA)


PARTS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": "<think>go"},
                {"type": "or", "elements": [
                    {"type": "const_string", "value": "A"}, {"type": "regex", "pattern": "[0-9]/"},
                ]},
                {"type": "optional", "content": {"type": "const_string", "value": "?"}},
                {"type": "plus", "content": {"type": "const_string", "value": "!"}},
                {"type": "star", "content": {"type": "const_string", "value": "."}},
            ],
        },
        r"<think>go(A|[0-9]/)\??!+\.*",
    ),
    (
        {"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": "]"},
        r"(?s)\[[^\]]*\]",
    ),
    (
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        r"(?s)<think>.*</think>",
    ),
    (
        {"type": "triggered_tags", "triggers": ["<tool_call>"], "stop_after_first": True, "tags": [
            {"type": "tag", "begin": "<tool_call>f", "end": ["</tool_call>", ";"],
             "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}},
        ]},
        r"(?s).*(<tool_call>f(true|false)(</tool_call>|;))?",
    ),
    (
        {"type": "json_schema", "style": "qwen_xml", "json_schema": {
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],
        }},
        r"(?s)<parameter=a>\n-?\d+\n</parameter>\n(<parameter=b>\n.*\n</parameter>\n)?",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "pattern"), PARTS)
def test_each_kind_of_part(
    grammars: Grammars, tokenizer: Tokenizer, part: dict[str, Any], pattern: str
) -> None:
    tag = json.dumps({"type": "structural_tag", "format": part})
    for seed in range(4):
        try:
            text = written(compiled(grammars, structural_tag=tag), tokenizer, seed)
        except AssertionError:
            assert "any_text" in tag or "string" in tag  # free text need not end by chance
            continue
        assert re.fullmatch(pattern, text), text


def test_the_older_form_of_a_structural_tag(grammars: Grammars, tokenizer: Tokenizer) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<tool_call>", "schema": {"type": "null"}, "end": "</tool_call>"}],
        "triggers": ["<tool_call>"],
    }
    constraint = compiled(grammars, structural_tag=json.dumps(tag))
    opening = tokenizer.token_to_id("<tool_call>")
    assert constraint.allowed([]).sum() > 100
    follows = constraint.allowed([opening])
    assert follows[tokenizer.token_to_id("n")]
    assert not follows[tokenizer.token_to_id("a")]


@pytest.mark.parametrize(
    "form",
    [
        {}, {"json": SCHEMA, "regex": "a"}, {"json": {"type": "nonsense"}}, {"json": "{"},
        {"regex": "("}, {"grammar": "start: missing"}, {"choice": []}, {"choice": "a"},
        {"json_object": False}, {"structural_tag": "{}"}, {"structural_tag": "["},
        {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "x"}})},
        {"structural_tag": json.dumps({"type": "structural_tag", "format": {
            "type": "triggered_tags", "triggers": ["go"], "tags": [
                {"type": "tag", "begin": "go", "content": {"type": "any_text"}, "end": "x"},
            ]}})},
        {"regex": "a" * 300_000}, 5,
    ],
)  # fmt: skip
def test_a_form_that_is_none_names_its_field(grammars: Grammars, form: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(grammars.constraints(form, [0]))
    assert caught.value.param == PARAM


def test_choices_do_not_share_their_place(grammars: Grammars) -> None:
    found = asyncio.run(grammars.constraints({"choice": ["ab", "cd"]}, range(2)))
    first = np.flatnonzero(found[0].allowed([]))
    assert not np.array_equal(np.flatnonzero(found[0].allowed([int(first[0])])), first)
    assert np.array_equal(np.flatnonzero(found[1].allowed([])), first)


def test_the_form_counts_after_the_end_of_the_reasoning(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    found = asyncio.run(grammars.constraints({"choice": ["yes"]}, [0], "</think>"))[0]
    thought, end = tokenizer.encode("a red circle").ids, tokenizer.token_to_id("</think>")
    assert found.allowed([]).all()
    assert found.allowed(thought).all()
    follows = found.allowed([*thought, end])
    assert follows[tokenizer.token_to_id("y")]
    assert not follows[tokenizer.token_to_id("a")]


def test_additional_properties_can_be_refused() -> None:
    inner = {"properties": {"b": {"type": "null"}}}
    out = closed({"properties": {"a": inner}, "items": [inner]})
    assert out["additionalProperties"] is False
    assert out["properties"]["a"]["additionalProperties"] is False
    assert closed({"properties": {}, "additionalProperties": True})["additionalProperties"] is True


# --- on a worker ---------------------------------------------------------------------------------


def prompt(tokenizer: Tokenizer, **params: Any) -> GenerateRequest:
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    values = {"max_tokens": 300, "temperature": 0.0} | params
    return GenerateRequest(
        token_ids=tokenizer.encode(text).ids, sampling_params=SamplingParams(**values)
    )


async def answers(
    start_worker: StartWorker, asked: Sequence[GenerateRequest]
) -> list[dict[int, list[int]]]:
    worker = await start_worker("all", model=str(DEMO), max_model_len=512)

    async def one(request: GenerateRequest) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        async for delta in worker.channel.stream(GENERATE, request, Deadline.after(60)):
            out.setdefault(delta.index, []).extend(delta.token_ids)
        return out

    done = await asyncio.gather(*map(one, asked))
    await worker.until_idle()
    return done


async def test_a_worker_gives_json_of_the_schema_beside_free_answers(
    start_worker: StartWorker, tokenizer: Tokenizer
) -> None:
    form = {"json": SCHEMA}
    free, greedy, sampled = await answers(
        start_worker,
        [
            prompt(tokenizer),
            prompt(tokenizer, structured_outputs=form, min_tokens=2),
            prompt(tokenizer, structured_outputs=form, temperature=1.0, n=3, seed=5),
        ],
    )
    with pytest.raises(ValueError, match=r"Expecting|Extra"):
        json.loads(tokenizer.decode(free[0]))
    for tokens in [greedy[0], *sampled.values()]:
        assert tokens[-1] == EOS
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
    assert len(set(map(tuple, sampled.values()))) > 1


async def test_the_form_goes_on_where_an_answer_is_taken_up(
    start_worker: StartWorker, tokenizer: Tokenizer
) -> None:
    """After the first tokens, from prefill by its KV blocks or from a stream that broke."""
    worker = await start_worker("all", model=str(DEMO), max_model_len=512)
    asked = prompt(tokenizer, structured_outputs={"json": SCHEMA}, temperature=1.0, seed=3)
    stream = worker.channel.stream(GENERATE, asked, Deadline.after(60))
    whole = [token async for delta in stream for token in delta.token_ids]
    resumed = GenerateRequest(
        token_ids=asked.token_ids,
        sampling_params=asked.sampling_params,
        resume_token_ids=whole[:7],
    )
    stream = worker.channel.stream(GENERATE, resumed, Deadline.after(60))
    assert [token async for delta in stream for token in delta.token_ids] == whole[7:]
    done = await worker.channel.call(PREFILL, asked, Deadline.after(60))
    assert done.deltas[0].token_ids == whole[:1]
    handed = GenerateRequest(
        token_ids=asked.token_ids,
        sampling_params=asked.sampling_params,
        kv_transfer_params=done.kv_transfer_params,
    )
    stream = worker.channel.stream(GENERATE, handed, Deadline.after(60))
    assert [token async for delta in stream for token in delta.token_ids] == whole[1:]


async def test_without_a_grammar_library_the_field_is_refused(start_worker: StartWorker) -> None:
    worker = await start_worker("all")  # a checkpoint without tokenizer.json
    asked = GenerateRequest(
        token_ids=[5], sampling_params=SamplingParams(structured_outputs={"json_object": True})
    )
    with pytest.raises(InvalidRequest) as caught:
        [delta async for delta in worker.channel.stream(GENERATE, asked, Deadline.after(20))]
    assert caught.value.param == PARAM
