"""Tool calls of every format, whole and cut at every position."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from render.parsers import tools
from render.parsers.tools.base import ToolDelta, ToolParser, merge

BAR = "\uff5c"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "tags": {"type": "array"},
                    "more": {"type": ["object", "null"]},
                }
            },
        },
    }
]

PARIS = {"city": "Paris", "days": 3}
ODD = {"city": 'a "b" {c} \\ [d] é', "more": {"x": [1, {"y": "}"}]}}
J = json.dumps

CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", "no call, only 1 < 2 <tool", "no call, only 1 < 2 <tool", []),
    (
        "hermes",
        'Let me see.<tool_call>\n{"name": "weather", "arguments": ' + J(PARIS) + "}\n</tool_call>",
        "Let me see.",
        [("weather", PARIS)],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": ' + J(ODD) + ', "name": "f"}</tool_call>\n<tool_call>\n'
        '{"name":"g","arguments":{}}\n</tool_call>',
        "",
        [("f", ODD), ("g", {})],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}", "n": 2.5e3, "z": null}</tool_call>',
        "",
        [("f", {"a": 1})],
    ),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]', "", [("f", {"a": 1})]),
    (
        "granite",
        'Hm.<|tool_call|>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": []}}]',
        "Hm.",
        [("f", {}), ("g", {"b": []})],
    ),
    ("llama3_json", '{"name": "f", "parameters": ' + J(PARIS) + "}", "", [("f", PARIS)]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"a": "b"}}; {"name": "g", "parameters": {}}',
        "",
        [("f", {"a": "b"}), ("g", {})],
    ),
    ("llama3_json", 'A {"name": "f"} in text.', 'A {"name": "f"} in text.', []),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": ' + J(ODD) + "}]", "", [("f", ODD)]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}]',
        "",
        [("f", {}), ("g", {"a": 1})],
    ),
    (
        "mistral",
        "Sure.[TOOL_CALLS]f[ARGS]" + J(ODD) + '[TOOL_CALLS]g[CALL_ID]abc123[ARGS]{"a": 1}',
        "Sure.",
        [("f", ODD), ("g", {"a": 1})],
    ),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', "", [("f", {"a": 1})]),
    (
        "deepseek_v3",
        f"Hi<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>f\n"
        f"```json\n{J(ODD)}\n```<{BAR}tool▁call▁end{BAR}>\n<{BAR}tool▁call▁begin{BAR}>function"
        f"<{BAR}tool▁sep{BAR}>g\n```json\n{{}}\n```<{BAR}tool▁call▁end{BAR}>"
        f"<{BAR}tool▁calls▁end{BAR}>",
        "Hi",
        [("f", ODD), ("g", {})],
    ),
    (
        "deepseek_v3",
        f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>f<{BAR}tool▁sep{BAR}>{J(PARIS)}"
        f"<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
        "",
        [("f", PARIS)],
    ),
    (
        "qwen3_coder",
        "Ok.\n<tool_call>\n<function=weather>\n<parameter=city>\nSan <b>Francisco</b>\n2nd line\n"
        "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
        '<parameter=tags>\n["a", 1]\n</parameter>\n<parameter=more>\nnull\n</parameter>\n'
        "<parameter=unknown>\n7\n</parameter>\n</function>\n</tool_call>",
        "Ok.\n",
        [
            (
                "weather",
                {
                    "city": "San <b>Francisco</b>\n2nd line",
                    "days": 3,
                    "metric": True,
                    "tags": ["a", 1],
                    "more": None,
                    "unknown": "7",
                },
            )
        ],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n"
        "<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {}), ("weather", {"days": "many"})],
    ),
    (
        "llama4_pythonic",
        '[weather(city="Par)is\\"]", days=3, metric=True), ns.g(x=[1, {"a": None}])]',
        "",
        [
            ("weather", {"city": 'Par)is"]', "days": 3, "metric": True}),
            ("ns.g", {"x": [1, {"a": None}]}),
        ],
    ),
    ("llama4_pythonic", "<|python_start|>[f(a='b')]<|python_end|>", "", [("f", {"a": "b"})]),
    ("llama4_pythonic", "[1, 2] is a list (a [short] one)", "[1, 2] is a list (a [short] one)", []),
    (
        "gpt_oss",
        "<|channel|>commentary to=functions.f<|message|>" + J(ODD) + "<|call|>",
        "",
        [("f", ODD)],
    ),
]  # fmt: skip


def parser_of(name: str) -> ToolParser:
    return tools.find(name)(TOOLS)


def run(name: str, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """What pieces of text give, the state carried as JSON between them."""
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    parser = parser_of(name)

    def take(delta: ToolDelta) -> None:
        content.append(delta.content)
        calls.extend(delta.calls)

    for piece in pieces:
        state = msgspec.json.decode(msgspec.json.encode(parser.state()))
        parser = parser_of(name)
        parser.restore(state)
        take(parser.push(piece))
    take(parser.finish())
    return "".join(content), merge(calls)


def check(found: tuple[str, list[dict[str, Any]]], content: str, calls: list[Any]) -> None:
    assert found[0] == content
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found[1]
    ] == calls
    ids = [call["id"] for call in found[1]]
    assert len(set(ids)) == len(ids)
    assert all(call["type"] == "function" for call in found[1])


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_whole_text(name: str, text: str, content: str, calls: list[Any]) -> None:
    check(run(name, [text]), content, calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_a_cut_at_every_position(name: str, text: str, content: str, calls: list[Any]) -> None:
    for cut in range(1, len(text)):
        check(run(name, [text[:cut], text[cut:]]), content, calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_character_by_character(name: str, text: str, content: str, calls: list[Any]) -> None:
    check(run(name, list(text)), content, calls)


@pytest.mark.parametrize("name", sorted(tools.TABLE))
@given(
    pieces=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "<|tool_call|>", "[TOOL_CALLS]", "[ARGS]", "{", "}",
             '"name"', ":", '"f"', '"arguments"', ",", "[", "]", "(", ")", "=", '"', "\\", "'",
             "<function=f>", "<parameter=a>", "</parameter>", "</function>", "text", "\n", " ",
             f"<{BAR}tool▁call▁begin{BAR}>", f"<{BAR}tool▁sep{BAR}>", "<|python_start|>", "1",
             "<|channel|>commentary to=functions.", "<|message|>", "<|call|>"]
        ),
        max_size=14,
    )
)  # fmt: skip
def test_no_text_breaks_a_parser_and_cuts_do_not_matter(name: str, pieces: list[str]) -> None:
    whole, cut = run(name, ["".join(pieces)]), run(name, list("".join(pieces)))
    assert whole[0] == cut[0]
    assert [call["function"] for call in whole[1]] == [call["function"] for call in cut[1]]


def test_text_is_not_held_back_once_it_is_final() -> None:
    parser = parser_of("hermes")
    assert parser.push("a <b> <tool").content == "a <b> "
    assert parser.push("box>").content == "<toolbox>"


def test_arguments_stream_as_they_come() -> None:
    parser = parser_of("hermes")
    parser.push('<tool_call>{"name": "f", "arguments": {"city": "Par')
    (delta,) = parser.push('is"').calls
    assert delta == {"index": 0, "function": {"arguments": 'is"'}}


def test_a_call_that_is_none_is_shown_as_it_was_written() -> None:
    assert run("hermes", ["<tool_call>no json</tool_call>"])[1] == []
    assert "no json" in run("hermes", ["<tool_call>no json</tool_call>"])[0]
    assert '{"a": 1' in run("hermes", ['<tool_call>{"a": 1'])[0]


def test_an_unknown_parser_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="hermes, llama3_json"):
        tools.find("other")


@pytest.mark.parametrize(
    "state",
    [{}, {"count": 0, "_mode": "restore", "_held": ""}, {"count": -1}, {"count": "x"}],
)
def test_a_state_that_is_none_is_refused(state: dict[str, Any]) -> None:
    full = {**parser_of("gpt_oss").state(), **state} if state else {}
    with pytest.raises((KeyError, TypeError, ValueError)):
        parser_of("gpt_oss").restore(full)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ('<tool_call>\n{"name": <function-name>', "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
        (f"<{BAR}tool▁calls▁begin{BAR}>", "deepseek_v3"),
        ("<|tool_call|>", "granite"),
        ("<|python_tag|>", "llama3_json"),
        ("<|channel|>", "gpt_oss"),
        ("{{ messages }}", ""),
    ],
)
def test_a_template_calls_for_a_parser(template: str, name: str) -> None:
    assert tools.detect(template) == name
