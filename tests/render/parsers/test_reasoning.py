"""Reasoning of every format, whole and cut at every position."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from render.parsers import reasoning
from render.parsers.reasoning.base import Split

HARMONY = (
    "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>Now I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
    '<|constrain|>json<|message|>{"a": 1}<|call|>'
)

CASES = [
    ("qwen3", "", "<think>\nwhy\n</think>\n\nanswer", "\nwhy\n", "\n\nanswer"),
    ("qwen3", "", "answer with </think> in it", "", "answer with </think> in it"),
    ("qwen3", "<|im_start|>assistant\n<think>\n", "why</think>\n\nanswer", "why", "\n\nanswer"),
    ("qwen3", "<think>\n\n</think>\n\n", "answer", "", "answer"),
    ("qwen3", "", "  \n<think>why", "why", ""),
    ("qwen3", "", "<thinking aloud", "", "<thinking aloud"),
    ("deepseek_r1", "", "why</think>answer", "why", "answer"),
    ("deepseek_r1", "", "<think>why</think>answer", "why", "answer"),
    ("deepseek_r1", "<think>\n", "why </thin", "why </thin", ""),
    ("mistral", "", "[THINK]why[/THINK]answer", "why", "answer"),
    (
        "granite",
        "",
        "Here is my thought process: why\nHere is my response: answer",
        " why\n",
        " answer",
    ),
    ("granite", "", "Here's my thought process: why Here's my response: a", " why ", " a"),
    ("granite", "", "Here is the answer", "", "Here is the answer"),
    (
        "gpt_oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>"
        "answer<|return|>",
        "why",
        "answer",
    ),
    (
        "gpt_oss",
        "<|start|>assistant",
        HARMONY,
        "First.",
        'Now I look.<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
    ),
]


def run(name: str, prompt: str, pieces: list[str]) -> Split:
    """What pieces of text give, the state carried as JSON between them."""
    found: list[Split] = []
    parser = reasoning.find(name)(prompt)
    for piece in pieces:
        state = msgspec.json.decode(msgspec.json.encode(parser.state()))
        parser = reasoning.find(name)("")
        parser.restore(state)
        found.append(parser.push(piece))
    found.append(parser.finish())
    return Split("".join(s.reasoning for s in found), "".join(s.content for s in found))


@pytest.mark.parametrize(("name", "prompt", "text", "why", "answer"), CASES)
def test_however_the_text_is_cut(name: str, prompt: str, text: str, why: str, answer: str) -> None:
    expected = Split(why, answer)
    assert run(name, prompt, [text]) == expected
    assert run(name, prompt, list(text)) == expected
    for cut in range(1, len(text)):
        assert run(name, prompt, [text[:cut], text[cut:]]) == expected


@pytest.mark.parametrize("name", sorted(reasoning.TABLE))
@given(
    pieces=st.lists(
        st.sampled_from(
            ["<think>", "</think>", "[THINK]", "[/THINK]", "Here is my thought process:",
             "Here is my response:", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>",
             "<|start|>", " to=functions.f", "<|call|>", "text", "\n", "<", "[", "H"]
        ),
        max_size=10,
    ),
    prompt=st.sampled_from(["", "<think>", "<think></think>"]),
)  # fmt: skip
def test_cuts_never_matter(name: str, pieces: list[str], prompt: str) -> None:
    text = "".join(pieces)
    assert run(name, prompt, [text]) == run(name, prompt, list(text))


def test_reasoning_is_not_held_back_once_it_is_final() -> None:
    parser = reasoning.find("qwen3")("<think>")
    assert parser.push("some thought </") == Split("some thought ", "")
    assert parser.push("b>") == Split("</b>", "")


def test_an_unknown_parser_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="deepseek_r1, gpt_oss"):
        reasoning.find("other")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '</think>' }}", "qwen3"),
        ("<\uff5cAssistant\uff5c> </think>", "deepseek_r1"),
        ("[THINK]", "mistral"),
        ("Here is my thought process:", "granite"),
        ("<|channel|>", "gpt_oss"),
        ("{{ messages }}", ""),
    ],
)
def test_a_template_calls_for_a_parser(template: str, name: str) -> None:
    assert reasoning.detect(template) == name
