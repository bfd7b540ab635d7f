"""Reasoning parsers by name, and the one that a chat template calls for."""

from __future__ import annotations

from render.parsers.reasoning.base import ReasoningParser
from render.parsers.table import look_up

GROUP = "triptych.reasoning_parsers"

TABLE: dict[str, str] = {
    "deepseek_r1": "render.parsers.reasoning.think:DeepSeekR1",
    "qwen3": "render.parsers.reasoning.think:Qwen3",
    "mistral": "render.parsers.reasoning.think:Mistral",
    "granite": "render.parsers.reasoning.granite:Granite",
    "gpt_oss": "render.parsers.reasoning.gpt_oss:GptOss",
}
"""Name -> `module:class`, imported on use."""


def find(name: str) -> type[ReasoningParser]:
    """The parser class under a name.

    Raises:
        InvalidRequest: there is none.
    """
    found: type[ReasoningParser] = look_up(TABLE, GROUP, name, "reasoning_parser")
    return found


def detect(template: str) -> str:
    """The parser that a template's own text calls for, "" for none."""
    if "<|channel|>" in template:
        return "gpt_oss"
    if "[THINK]" in template:
        return "mistral"
    if "</think>" in template:
        return "deepseek_r1" if "<\uff5cAssistant\uff5c>" in template else "qwen3"
    if "my thought process" in template:
        return "granite"
    return ""


def choose(name: str, template: str) -> type[ReasoningParser] | None:
    """The parser of a setting: a name, `auto` for what the template calls for, "" for none.

    Raises:
        InvalidRequest: there is no parser of that name.
    """
    name = detect(template) if name == "auto" else name
    return find(name) if name else None
