"""The short way of single tokens through the parsers: the same answer, without the parsing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from protocol.derender import ChoiceDerenderer, DerenderedDelta
from protocol.openai import ChatCompletionRequest
from protocol.rpc import TokenDelta
from render.derender import HfDerenderer
from render.parsed import ParsedDerenderer
from render.parsers import reasoning, tools
from render.parsers.tools.base import merge
from render.text import TextDerenderer
from tests.render import checkpoints
from tests.render.parsers import test_reasoning, test_tools

CODE = 'def f(x: dict) -> str:\n\treturn f"{x[\'a\']}\\n\\u00e9 {x}]}" + "日本語"\n' * 8
LONG = json.dumps({"path": "a.py", "text": CODE, "more": [{"b": [1, {"c": None}]}]})
PROSE = "the quick brown fox jumps over the lazy dog, 1 < 2 and [3] {4} " * 8
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {LONG}}}\n</tool_call>',
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {LONG}}}]',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{LONG}",
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"  # noqa: RUF001
        f"{LONG}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\n"
        f"{CODE}\n</parameter>\n</function>\n</tool_call>"
    ),
    "gpt_oss": (
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{LONG}<|call|>"
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary with every token that a parser asks for."""
    path = tmp_path_factory.mktemp("lanes")
    parsers = [reasoning.find(name) for name in reasoning.TABLE]
    callers = [tools.find(name) for name in tools.TABLE]
    marks = {token for parser in [*parsers, *callers] for token in parser.tokens}
    checkpoints.byte_level(path, ["<|endoftext|>"], sorted(marks))
    return path


@pytest.fixture(scope="module")
def vocabulary(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[], tools=test_tools.TOOLS, **fields)


def run(
    choice: ChoiceDerenderer, ids: list[int], size: int
) -> tuple[str, str, list[dict[str, Any]], Any]:
    """Reasoning, content, calls without their random ids, and why it ended."""
    out: list[DerenderedDelta] = []
    for at in range(0, max(1, len(ids)), size):
        last = at + size >= len(ids)
        piece = TokenDelta(token_ids=ids[at : at + size], finish_reason="stop" if last else None)
        out.append(choice.push(piece))
        if out[-1].stopped:
            break
    assert [token for one in out for token in one.token_ids] == ids[: sum(map(_count, out))]
    calls = merge([call for one in out for call in one.tool_calls])
    return (
        "".join(one.reasoning for one in out),
        "".join(one.content for one in out),
        [call | {"id": ""} for call in calls],
        (out[-1].finish_reason, out[-1].stop_reason),
    )


def _count(delta: DerenderedDelta) -> int:
    return len(delta.token_ids)


@pytest.mark.parametrize(("name", "text"), [(case[0], case[1]) for case in test_tools.CASES])
def test_single_tokens_give_the_calls_of_the_whole(
    checkpoint: Path, vocabulary: Tokenizer, name: str, text: str
) -> None:
    derenderer = HfDerenderer(str(checkpoint), reasoning_parser="", tool_parser=name)
    ids = vocabulary.encode(PROSE + text + PROSE + text).ids
    for asked in (request(), request(parallel_tool_calls=False), request(stop=["lazy", "\n\n"])):
        whole = run(derenderer.chat(asked, []), ids, len(ids))
        assert run(derenderer.chat(asked, []), ids, 1) == whole


@pytest.mark.parametrize(
    ("name", "prompt", "text"), [(case[0], case[1], case[2]) for case in test_reasoning.CASES]
)
def test_single_tokens_give_the_reasoning_of_the_whole(
    checkpoint: Path, vocabulary: Tokenizer, name: str, prompt: str, text: str
) -> None:
    derenderer = HfDerenderer(str(checkpoint), reasoning_parser=name, tool_parser="hermes")
    before, ids = vocabulary.encode(prompt).ids, vocabulary.encode(text + PROSE).ids
    for asked in (request(), request(include_reasoning=False), request(tool_choice="none")):
        whole = run(derenderer.chat(asked, before), ids, len(ids))
        assert run(derenderer.chat(asked, before), ids, 1) == whole


@pytest.mark.parametrize("name", CALLS)
def test_most_tokens_of_text_and_of_arguments_are_not_parsed(
    checkpoint: Path, vocabulary: Tokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = name if name == "gpt_oss" else "qwen3"
    derenderer = HfDerenderer(str(checkpoint), reasoning_parser=own, tool_parser=name)
    said = PROSE.replace("<", "").replace("[", "")
    if name == "gpt_oss":
        said = f"<|channel|>final<|message|>{said}<|end|><|start|>assistant"
    ids = vocabulary.encode(said + CALLS[name]).ids
    whole = run(derenderer.chat(request(), []), ids, len(ids))
    assert [call["function"]["name"] for call in whole[2]] == ["weather"]
    parsed: list[TokenDelta] = []
    long_way = ParsedDerenderer._parse

    def counted(self: ParsedDerenderer, delta: TokenDelta) -> DerenderedDelta:
        parsed.append(delta)
        return long_way(self, delta)

    monkeypatch.setattr(ParsedDerenderer, "_parse", counted)
    assert run(derenderer.chat(request(), []), ids, 1) == whole
    assert len(parsed) < len(ids) / 4


@given(
    text=st.lists(st.sampled_from(["END", "EN", "E", "a", "é", "日", " ", "D", "\n"])).map("".join),
    size=st.integers(1, 3),
    least=st.integers(0, 5),
    carried=st.booleans(),
)
def test_stop_strings_and_state_see_every_token(
    checkpoint: Path, vocabulary: Tokenizer, text: str, size: int, least: int, carried: bool
) -> None:
    derenderer = HfDerenderer(str(checkpoint), reasoning_parser="", tool_parser="")
    asked = request(stop=["END", "日 "], min_tokens=least)
    ids = vocabulary.encode(text).ids
    live, out = derenderer.chat(asked, []), []
    reference = derenderer.chat(asked, [])
    assert isinstance(live, TextDerenderer)
    assert isinstance(reference, TextDerenderer)
    for at in range(0, len(ids), size):
        if carried:
            state = msgspec.json.decode(msgspec.json.encode(live.state()))
            live = derenderer.chat(asked, [])
            assert isinstance(live, TextDerenderer)
            live.restore(state)
        piece = TokenDelta(token_ids=ids[at : at + size])
        out.append(live.push(piece))
        assert out[-1] == reference.push_any(piece)
        if out[-1].stopped:
            break
