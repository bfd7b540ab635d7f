"""Requests are the same for the same family, and of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from interop import derender
from interop.cases import Family, cases
from interop.streams import SETS, StreamSet
from interop.wanted import WANTED
from protocol.openai import ChatCompletionRequest
from render.checkpoint import open_checkpoint
from render.families import create
from tests.render.family_checkpoints import MAKERS

FAMILY = Family("qwen", frozenset({"image", "video"}), ("<|x|>",), 400)


def test_the_same_numbers_give_the_same_requests() -> None:
    first, again = (json.dumps(list(cases(FAMILY, 40))) for _ in range(2))
    assert first == again


def test_twenty_requests_are_of_nearly_every_kind() -> None:
    kinds = {case.kind for case in cases(FAMILY, 20)}
    assert kinds == {case.kind for case in cases(FAMILY, 200)}


def test_a_text_model_is_sent_no_media() -> None:
    text = FAMILY._replace(modalities=frozenset())
    sent = json.dumps([case.body for case in cases(text, 60) if case.kind != "bad input"])
    assert "data:image" not in sent
    assert "data:video" not in sent


@pytest.mark.parametrize("name", MAKERS)
def test_each_family_has_a_checkpoint_that_we_serve(name: str, tmp_path: Path) -> None:
    family = create(open_checkpoint(MAKERS[name](tmp_path)))
    assert ("image" in family.placeholders) == (name not in ("text", "llama", "qwen2_audio"))


@pytest.mark.parametrize("streams", SETS, ids=lambda one: one.name)
def test_streams_are_cut_at_every_position(streams: StreamSet, tmp_path: Path) -> None:
    model = streams.checkpoint(tmp_path)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    found = list(derender.cases(streams, tokenizer))
    assert [case.number for case in found] == list(range(len(found)))
    cuts = [case for case in found if case.kind.startswith("cut at")]
    for case in cuts:
        first, second = case.body["pieces"]
        assert first
        assert second
    lengths = [
        sum(map(len, case.body["pieces"])) for case in found if case.kind == "token by token"
    ]
    assert len(cuts) == sum(length - 1 for length in lengths)
    for output in streams.outputs:
        ChatCompletionRequest(messages=[], **output.fields)


def test_each_wanted_difference_has_a_name_and_a_reason() -> None:
    assert len({one.name for one in WANTED}) == len(WANTED)
    assert all(len(one.reason) > 30 for one in WANTED)
