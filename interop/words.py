"""Texts, conversations and tools for requests."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = (
    "a", "red", "circle", "Describe", "image", "the", "quick", "brown", "fox", "Paris", "naïve",
    "Straße", "日本語", "emoji", "🦊", "👩‍👩‍👧", "é", "e\u0301", "λ", "42", "3.14", "don't",
    "\u00a0", "x=1;", "{json}", "<b>", "&amp;", "'quoted'", '"double"', "back\\slash", "tab\there",
)  # fmt: skip
_GAPS = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "")

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a city's weather up: °C, “today”.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "a <b> & c",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            },
            "strict": True,
        },
    },
]


def words(rng: random.Random, count: int) -> str:
    """Plain words."""
    return " ".join(rng.choice(("red", "circle", "fox", "Paris", "blue")) for _ in range(count))


def sentence(rng: random.Random) -> str:
    """A text with whatever a tokenizer might stumble over."""
    out = ""
    for _ in range(rng.randint(1, 14)):
        out += rng.choice(_WORDS) + rng.choice(_GAPS)
    return out if rng.random() < 0.3 else out.strip() or "a"


def conversation(rng: random.Random, turns: int, system: bool = True) -> list[dict[str, Any]]:
    """User and assistant in turn, perhaps with a system prompt before them."""
    messages = [
        {"role": ("user", "assistant")[index % 2], "content": sentence(rng)}
        for index in range(turns)
    ]
    if system and rng.random() < 0.3:
        messages.insert(0, {"role": "system", "content": sentence(rng)})
    return messages


def answer_call(rng: random.Random) -> list[dict[str, Any]]:
    """An assistant's calls, their results, and what the user says then."""
    calls, results = [], []
    for index in range(rng.randint(1, 3)):
        arguments = {"city": rng.choice(("Paris", "München", "東京")), "days": rng.randrange(9)}
        text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        calls.append({
            "id": f"call_{index}", "type": "function",
            "function": {"name": "look_up", "arguments": text},
        })  # fmt: skip
        result: Any = sentence(rng)
        if rng.random() < 0.3:
            result = [{"type": "text", "text": result}, {"type": "text", "text": "and"}]
        results.append({"role": "tool", "tool_call_id": f"call_{index}", "content": result})
    assistant: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
    match rng.randrange(3):
        case 0:
            assistant["content"] = None
        case 1:
            assistant["content"] = sentence(rng)
    after = [{"role": "user", "content": sentence(rng)}] if rng.random() < 0.5 else []
    return [assistant, *results, *after]
