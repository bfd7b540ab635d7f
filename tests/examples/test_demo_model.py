"""The bundled checkpoint loads from its directory and answers about unseen drawings."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from examples.drawings import MULTI_IMAGE_KINDS, SINGLE_IMAGE_KINDS, Kind, examples

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from examples.demo_model import CHECKPOINT, answers

UNSEEN: Final = 20_000_000
CASES: Final[list[tuple[Kind, int | None]]] = [
    *((kind, None) for kind in SINGLE_IMAGE_KINDS),
    *((kind, images) for kind in MULTI_IMAGE_KINDS for images in (2, 3, 4)),
    ("text", None),
]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    """The model, as anyone would load it, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForImageTextToText.from_pretrained(CHECKPOINT).eval()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def processor() -> Any:
    """Tokenizer, image processor and chat template, as anyone would load them."""
    return AutoProcessor.from_pretrained(CHECKPOINT)


@pytest.mark.parametrize(("kind", "images"), CASES)
def test_answers_about_unseen_drawings(
    model: Any, processor: Any, kind: Kind, images: int | None
) -> None:
    """Of 30 greedy answers at most one is wrong, at most two about several images."""
    source = examples(np.random.default_rng(UNSEEN), kind, images=images)
    questions = list(itertools.islice(source, 30))
    given = answers(model, processor, questions)
    wrong = [(e.answer, a) for e, a in zip(questions, given, strict=True) if a != e.answer]
    assert len(wrong) <= (1 if images is None else 2), wrong


def test_text_may_come_before_the_image(model: Any, processor: Any) -> None:
    """The order of the parts and a system prompt do not matter."""
    questions = list(itertools.islice(examples(np.random.default_rng(UNSEEN + 1), "describe"), 30))
    given = answers(
        model, processor, questions, text_first=True, system="You are a helpful assistant."
    )
    assert sum(e.answer == a for e, a in zip(questions, given, strict=True)) >= 28


def test_any_text_survives_the_tokenizer(processor: Any) -> None:
    """The vocabulary holds every byte."""
    text = 'Grüße, 世界 🦜\t{"a": [1, 2]}\n  \x00 end'
    ids = processor.tokenizer.encode(text)
    assert processor.tokenizer.decode(ids) == text


def test_chat_template_offers_tools_and_renders_calls(processor: Any) -> None:
    """Tools, calls and results are written in the Hermes form."""
    tool = {"type": "function", "function": {"name": "area", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "area", "arguments": {"side": 2}}}
    text = processor.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How big?"}]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "4"},
        ],
        tools=[tool],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(tool) in text
    assert '<tool_call>\n{"name": "area", "arguments": {"side": 2}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(("options", "numbers"), [({}, ["1", "2"]), ({"add_vision_id": False}, [])])
def test_chat_template_numbers_images(
    processor: Any, options: dict[str, bool], numbers: list[str]
) -> None:
    """The count goes on over the whole conversation, and can be turned off."""
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}]},
        {"role": "assistant", "content": "Here."},
        {"role": "user", "content": [{"type": "text", "text": "And?"}, {"type": "image"}]},
    ]
    text = processor.apply_chat_template(messages, tokenize=False, **options)
    assert text.count("<|vision_start|><|image_pad|><|vision_end|>") == 2
    assert re.findall(r"image (\d+)", text) == numbers


def test_layout_is_that_of_a_published_checkpoint() -> None:
    """The files that serving engines read are there, and the weights are small."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    for name in ("preprocessor_config.json", "video_preprocessor_config.json", "tokenizer.json"):
        assert (CHECKPOINT / name).is_file(), name
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 8_000_000
