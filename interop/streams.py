"""Recorded answers of models, as texts that a tiny tokenizer makes token streams of.

A set is one configuration of parsers, with the answers that models of that kind write: plain ones,
calls, several calls, broken ones, and those that end in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.render import checkpoints
from tests.render.checkpoints import write
from tests.render.family_checkpoints import TEXT

_BAR = "\uff5c"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]


class Output(NamedTuple):
    """One answer.

    Attributes:
        text: what the model wrote.
        finish: why it ended: a `stop` is followed by the end-of-turn token.
        tools: whether the request had tools.
        prompt: the end of the prompt.
        fields: of the request.
    """

    text: str
    finish: str = "stop"
    tools: bool = True
    prompt: str = "assistant\n"
    fields: dict[str, Any] = {}


class StreamSet(NamedTuple):
    """Answers under one configuration.

    Attributes:
        special, plain: added tokens of the tokenizer, end of turn first.
        options: of the reference's command line.
        config: of ours.
        make: writes the tokenizer.
    """

    name: str
    special: tuple[str, ...]
    plain: tuple[str, ...]
    options: tuple[str, ...]
    config: dict[str, Any]
    outputs: tuple[Output, ...]
    make: Callable[[Path, list[str], list[str]], dict[str, int]] = checkpoints.byte_level

    def checkpoint(self, path: Path) -> Path:
        """A text model with this tokenizer."""
        path.mkdir(parents=True, exist_ok=True)
        self.make(path, list(self.special), list(self.plain))
        config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **TEXT}
        write(path, "config.json", config)
        write(path, "tokenizer_config.json", {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.special[0],
            "additional_special_tokens": list(self.special),
        })  # fmt: skip
        (path / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m.role + '\\n' + (m.content or '') + '\\n' }}{% endfor %}"
        )
        return path


def _parsers(tool: str = "", reasoning: str = "") -> tuple[tuple[str, ...], dict[str, Any]]:
    options: list[str] = []
    if tool:
        options += ["--enable-auto-tool-choice", "--tool-call-parser", tool]
    if reasoning:
        options += ["--reasoning-parser", reasoning]
    config = {"tool_parser": tool, "reasoning_parser": reasoning, "processes": 1}
    return tuple(options), config


_WORDS = (
    Output("A red circle, naïve 日本語 and 🦊.", tools=False),
    Output(" leading and trailing ", "length", tools=False),
    Output("a\n\n\nb", tools=False, fields={"include_reasoning": False}),
)
_ARGUMENTS = '{"city": "München \\"x\\" {y} 🦊", "days": 3}'
_HERMES = f'<tool_call>\n{{"name": "look_up", "arguments": {_ARGUMENTS}}}\n</tool_call>'
_CODER = (
    "<tool_call>\n<function=look_up>\n<parameter=city>\nParis <b>\n2nd line\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n<parameter=metric>\ntrue\n</parameter>\n</function>\n"
    "</tool_call>"
)
_THOUGHT = "I must look it up, 1 < 2."


def _deepseek(*calls: str) -> str:
    body = "\n".join(
        f"<{_BAR}tool▁call▁begin{_BAR}>function<{_BAR}tool▁sep{_BAR}>{call}"
        f"<{_BAR}tool▁call▁end{_BAR}>"
        for call in calls
    )
    return f"<{_BAR}tool▁calls▁begin{_BAR}>{body}<{_BAR}tool▁calls▁end{_BAR}>"


SETS: tuple[StreamSet, ...] = (
    StreamSet(
        "plain", ("<|im_end|>", "<|im_start|>"), (), *_parsers(),
        (
            *_WORDS,
            Output("shown <|im_start|> or not", tools=False),
            Output("shown <|im_start|>", tools=False, fields={"skip_special_tokens": False}),
        ),
    ),
    StreamSet(
        "word starts", ("</s>", "<s>"), (), *_parsers(),
        (*_WORDS, Output("after a space", tools=False, prompt="so ")),
        checkpoints.sentencepiece_like,
    ),
    StreamSet(
        "hermes", ("<|im_end|>", "<|im_start|>"), ("<tool_call>", "</tool_call>"),
        *_parsers("hermes"),
        (
            *_WORDS,
            Output(_HERMES),
            Output(f"Let me see.\n{_HERMES}"),
            Output('<tool_call>{"name": "now", "arguments": {}}</tool_call>' + _HERMES),
            Output('<tool_call>{"name": "look_up", "arguments": {"city": "Par', "length"),
            Output("1 < 2 <tool and 3"),
            Output(_HERMES, tools=False),
        ),
    ),
    StreamSet(
        "qwen3", ("<|im_end|>", "<|im_start|>"),
        ("<tool_call>", "</tool_call>", "<think>", "</think>"), *_parsers("hermes", "qwen3"),
        (
            Output(f"<think>\n{_THOUGHT}\n</think>\n\nParis.", tools=False),
            Output(f"{_THOUGHT}</think>Paris.", tools=False, prompt="assistant\n<think>\n"),
            Output("Paris.", tools=False, prompt="assistant\n<think>\n\n</think>\n\n"),
            Output(f"<think>{_THOUGHT}", "length", tools=False),
            Output(f"<think>\n{_THOUGHT}\n</think>\n\n{_HERMES}"),
            Output(
                "Paris.", tools=False, fields={"chat_template_kwargs": {"enable_thinking": False}}
            ),
        ),
    ),
    StreamSet(
        "qwen3_coder", ("<|im_end|>", "<|im_start|>"), ("<tool_call>", "</tool_call>"),
        *_parsers("qwen3_coder"),
        (
            Output(_CODER),
            Output(f"Let me see.\n{_CODER}"),
            Output("<tool_call>\n<function=now>\n</function>\n</tool_call>\n" + _CODER),
            Output("No call at all.", tools=False),
        ),
    ),
    StreamSet(
        "deepseek",
        (
            "<|end|>", f"<{_BAR}tool▁calls▁begin{_BAR}>", f"<{_BAR}tool▁calls▁end{_BAR}>",
            f"<{_BAR}tool▁call▁begin{_BAR}>", f"<{_BAR}tool▁call▁end{_BAR}>",
            f"<{_BAR}tool▁sep{_BAR}>",
        ),
        ("<think>", "</think>"), *_parsers("deepseek_v3", "deepseek_r1"),
        (
            Output(f"<think>\n{_THOUGHT}\n</think>\n\nParis.", tools=False),
            Output(f"{_THOUGHT}\n</think>\n\nParis.", tools=False),
            Output(_THOUGHT, "length", tools=False),
            Output(
                "</think>Hi" + _deepseek(f"look_up\n```json\n{_ARGUMENTS}\n```")
            ),
            Output(
                "</think>" + _deepseek(
                    "now\n```json\n{}\n```", f"look_up\n```json\n{_ARGUMENTS}\n```"
                )
            ),
        ),
    ),
    StreamSet(
        "llama3_json", ("<|eot_id|>", "<|python_tag|>"), (), *_parsers("llama3_json"),
        (
            *_WORDS,
            Output(f'{{"name": "look_up", "parameters": {_ARGUMENTS}}}'),
            Output(f'<|python_tag|>{{"name": "look_up", "parameters": {_ARGUMENTS}}}'),
            Output('{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'),
            Output("{no call}"),
        ),
    ),
    StreamSet(
        "llama4_pythonic", ("<|eot|>", "<|python_start|>", "<|python_end|>"), (),
        *_parsers("llama4_pythonic"),
        (
            Output('[look_up(city="Paris", days=3, metric=True)]'),
            Output("[now(), look_up(city='M')]"),
            Output("No call.", tools=False),
        ),
    ),
    StreamSet(
        "mistral", ("</s>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"), (),
        *_parsers("mistral"),
        (
            *_WORDS,
            Output(f'[TOOL_CALLS] [{{"name": "look_up", "arguments": {_ARGUMENTS}}}]'),
            Output('Sure.[TOOL_CALLS] [{"name": "now", "arguments": {}}]'),
        ),
    ),
    StreamSet(
        "granite", ("<|end_of_text|>", "<|tool_call|>"), (), *_parsers("granite", "granite"),
        (
            Output(f'<|tool_call|>[{{"name": "look_up", "arguments": {_ARGUMENTS}}}]'),
            Output(
                f"Here is my thought process: {_THOUGHT} Here is my response: Paris.", tools=False
            ),
            Output("Paris.", tools=False),
        ),
    ),
)  # fmt: skip
"""gpt-oss is missing: the reference reads it with a tokenizer that it downloads."""
