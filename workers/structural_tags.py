"""Structural tags as Lark grammars: sequences of fixed text, tags and JSON with a schema.

The format is the one that servers of this kind have in common: an object with a `type`, whose other
keys depend on it. A piece of fixed text that is a token of its own becomes that token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST_NODES = 4096
_ANY_TEXT = "/(?s:.*)/"


class TagError(ValueError):
    """A structural tag that is malformed, or asks for what cannot be done."""


def to_lark(tag: Any, tokens: Mapping[str, int], options: Mapping[str, Any]) -> str:
    """The grammar of a structural tag.

    Args:
        tag: the JSON value, in today's form (`format`) or the older one (`structures`).
        tokens: text -> id of the tokens that no ordinary text gives.
        options: of every JSON schema in it.

    Raises:
        TagError: says what is wrong.
    """
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag":
        raise TagError("a structural tag is an object of type 'structural_tag'")
    form = tag.get("format")
    if form is None and "structures" in tag:
        form = {
            "type": "triggered_tags",
            "triggers": tag.get("triggers"),
            "tags": [_from_structure(one) for one in _list(tag["structures"], "structures")],
        }
    writer = _Writer(tokens, options)
    start = writer.rule(form)
    return "\n".join([f"start: {start}", *writer.rules])


def _from_structure(structure: Any) -> dict[str, Any]:
    if not isinstance(structure, dict):
        raise TagError("structures must hold objects")
    content = {"type": "json_schema", "json_schema": structure.get("schema", True)}
    return {
        "type": "tag", "begin": structure.get("begin"), "content": content,
        "end": structure.get("end"),
    }  # fmt: skip


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise TagError(f"{what} must be a list that is not empty")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TagError(f"{what} must be a string")
    return value


class _Writer:
    def __init__(self, tokens: Mapping[str, int], options: Mapping[str, Any]) -> None:
        self.rules: list[str] = []
        self._tokens = tokens
        self._options = options
        longest_first = sorted(tokens, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._kinds: dict[str, Callable[[dict[str, Any]], str]] = {
            "const_string": lambda form: self.literal(_text(form.get("value"), "value")),
            "json_schema": self._schema,
            "any_text": lambda _: _ANY_TEXT,
            "regex": lambda form: regex(_text(form.get("pattern"), "pattern")),
            "sequence": lambda form: " ".join(self._all(form, "elements")),
            "or": lambda form: " | ".join(self._all(form, "elements")),
            "optional": lambda form: f"({self.rule(form.get('content'))})?",
            "star": lambda form: f"({self.rule(form.get('content'))})*",
            "plus": lambda form: f"({self.rule(form.get('content'))})+",
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def rule(self, form: Any) -> str:
        """Name of a rule for a part."""
        if not isinstance(form, dict):
            raise TagError("every part of a structural tag is an object with a type")
        write = self._kinds.get(str(form.get("type")))
        if write is None:
            known = ", ".join(self._kinds)
            raise TagError(f"type {form.get('type')!r} is not supported; {known} are")
        return self._named(write(form))

    def literal(self, text: str) -> str:
        """Fixed text: tokens where it has any, characters between them."""
        out: list[str] = []
        at = 0
        for found in self._split.finditer(text):
            out += [_quoted(text[at : found.start()]), f"<[{self._tokens[found[0]]}]>"]
            at = found.end()
        return " ".join(part for part in [*out, _quoted(text[at:])] if part != '""') or '""'

    def _named(self, body: str, attributes: str = "") -> str:
        if len(self.rules) >= _MOST_NODES:
            raise TagError("the structural tag has too many parts")
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def _all(self, form: dict[str, Any], key: str) -> list[str]:
        return [self.rule(one) for one in _list(form.get(key), key)]

    def _schema(self, form: dict[str, Any]) -> str:
        schema = form.get("json_schema")
        style = form.get("style", "json")
        if style == "json":
            return self._json(schema)
        if style == "qwen_xml":
            return self._parameters(schema)
        raise TagError(f"style {style!r} is not supported; json and qwen_xml are")

    def _json(self, schema: Any) -> str:
        if not isinstance(schema, dict | bool):
            raise TagError("json_schema must be an object or a boolean")
        value = (
            {"x-guidance": dict(self._options), **schema} if isinstance(schema, dict) else schema
        )
        return f"%json {json.dumps(value)}"

    def _parameters(self, schema: Any) -> str:
        """`<parameter=key>` for each property; text stands bare, all else as JSON."""
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return _ANY_TEXT
        required = schema.get("required") or ()
        parts: list[str] = []
        for key, value in properties.items():
            opening = self.literal(f"<parameter={key}>\n")
            inside = self._parameter(value if isinstance(value, dict) else {})
            part = self._named(f"{opening} {inside}")
            parts.append(part if key in required else f"({part})?")
        return " ".join(parts) or '""'

    def _parameter(self, schema: dict[str, Any]) -> str:
        """A value and what closes it."""
        closing = self.literal("\n</parameter>\n")
        words = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if words and all(isinstance(word, str) for word in words):
            return f"({' | '.join(map(self.literal, words))}) {closing}"
        if not words and schema.get("type", "string") == "string":
            return self._named(_ANY_TEXT, '[suffix="\\n</parameter>\\n"]')
        return f"{self._named(self._json(schema))} {closing}"

    def _tag(self, form: dict[str, Any]) -> str:
        begin = self.literal(_text(form.get("begin"), "begin"))
        content = form.get("content")
        ends = form.get("end")
        if isinstance(ends, list):
            end = "(" + " | ".join(self.literal(_text(one, "end")) for one in ends) + ")"
        else:
            end = self.literal(_text(ends, "end"))
            free = isinstance(content, dict) and content.get("type") == "any_text"
            if free and isinstance(ends, str) and ends and not end.startswith("<["):
                return f"{begin} {self._named(_ANY_TEXT, f'[suffix={_quoted(ends)}]')}"
        return f"{begin} {self.rule(content)} {end}"

    def _triggered(self, form: dict[str, Any]) -> str:
        tags = self._all(form, "tags")
        one = self._named(" | ".join(tags))
        if form.get("at_least_one"):
            return one if form.get("stop_after_first") else f"{one} ({one})*"
        for trigger in _list(form.get("triggers"), "triggers"):
            if not self.literal(_text(trigger, "triggers")).startswith("<["):
                raise TagError("a trigger in free text must begin with a token of its own")
        free = self._named(_ANY_TEXT)
        if form.get("stop_after_first"):
            return f"{free} ({one})?"
        return f"{free} ({one} {free})*"

    def _separated(self, form: dict[str, Any]) -> str:
        one = self._named(" | ".join(self._all(form, "tags")))
        separator = self.literal(_text(form.get("separator"), "separator"))
        many = one if form.get("stop_after_first") else f"{one} ({separator} {one})*"
        return many if form.get("at_least_one") else f"({many})?"


def alternatives(texts: Sequence[str]) -> str:
    """A grammar of which each text is a sentence."""
    return "start: " + " | ".join(map(_quoted, texts))


def regex(pattern: str) -> str:
    """A regular expression as a terminal."""
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern) + "/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
