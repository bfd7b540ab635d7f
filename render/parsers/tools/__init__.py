"""Tool parsers by name, and the one that a chat template calls for."""

from __future__ import annotations

from render.parsers.table import look_up
from render.parsers.tools.base import ToolParser

GROUP = "triptych.tool_parsers"

TABLE: dict[str, str] = {
    "hermes": "render.parsers.tools.marked_json:Hermes",
    "granite": "render.parsers.tools.marked_json:Granite",
    "qwen3_coder": "render.parsers.tools.qwen3_coder:Qwen3Coder",
    "llama3_json": "render.parsers.tools.llama3_json:Llama3Json",
    "llama4_pythonic": "render.parsers.tools.llama4_pythonic:Llama4Pythonic",
    "mistral": "render.parsers.tools.mistral:Mistral",
    "deepseek_v3": "render.parsers.tools.deepseek_v3:DeepSeekV3",
    "gpt_oss": "render.parsers.tools.gpt_oss:GptOss",
}
"""Name -> `module:class`, imported on use."""

_SIGNS = (
    ("<|channel|>", "gpt_oss"),
    ("<\uff5ctool▁calls▁begin\uff5c>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_coder"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
)


def find(name: str) -> type[ToolParser]:
    """The parser class under a name.

    Raises:
        InvalidRequest: there is none.
    """
    found: type[ToolParser] = look_up(TABLE, GROUP, name, "tool_parser")
    return found


def detect(template: str) -> str:
    """The parser that a template's own text calls for, "" for none."""
    return next((name for sign, name in _SIGNS if sign in template), "")


def choose(name: str, template: str) -> type[ToolParser] | None:
    """The parser of a setting: a name, `auto` for what the template calls for, "" for none.

    Raises:
        InvalidRequest: there is no parser of that name.
    """
    name = detect(template) if name == "auto" else name
    return find(name) if name else None
