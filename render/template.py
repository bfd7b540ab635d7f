"""The model's chat template: messages to the prompt's text.

A Hugging Face chat template is Jinja in a sandbox with a few helpers of its own. It is rendered
here, so that this process needs neither transformers nor torch; a test compares the two.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import InvalidRequest
from render.checkpoint import read_json, template_source
from render.messages import ContentFormat

_PROBE = "triptych-probe"
_END_OF_MESSAGE = "triptych-end-of-message "
"""Marks where a continued message ends; its space shows whether the template trims."""

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
"""What no client may set through template arguments."""


class ChatTemplate:
    """One checkpoint's chat template.

    Args:
        path: the checkpoint's directory.
        override: a template that replaces the checkpoint's, or None.
    """

    def __init__(self, path: Path, override: str | None = None) -> None:
        self._special = special_tokens(path)
        self._template = override if override is not None else template_source(path)
        self._formats: dict[str, ContentFormat] = {}

    @property
    def source(self) -> str | None:
        """The default template's text, None where the model has none."""
        return self._template

    def content_format(self, template: str | None = None) -> ContentFormat:
        """Whether a template takes content as a list of parts or as one string.

        Found by rendering a probe: a template that knows only strings prints a list as it is.
        """
        source = template or self._template
        if source is None:
            return "string"
        if source not in self._formats:
            if len(self._formats) > 32:  # templates of requests
                self._formats.clear()
            self._formats[source] = self._probe(source)
        return self._formats[source]

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Raises:
            InvalidRequest: the template refuses the messages, or there is none.
        """
        source = template or self._template
        if source is None:
            raise InvalidRequest("the model has no chat template", "messages")
        if continue_final_message:
            messages = _marked(messages)
        try:
            text = _compiled(source).render(
                **{
                    **self._special,
                    **(kwargs or {}),
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refused: {error}", "messages") from None
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as e:
            # A template meets a value that it was not written for.
            raise InvalidRequest(f"the chat template failed: {e}", "messages") from None
        return _cut_at_mark(text) if continue_final_message else text

    def _probe(self, source: str) -> ContentFormat:
        messages = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        try:
            text = self.render(messages, template=source)
        except InvalidRequest:
            return "string"
        return "openai" if _PROBE in text and f"'text': '{_PROBE}'" not in text else "string"


def special_tokens(path: Path) -> dict[str, Any]:
    """The special tokens that templates know by name, such as `bos_token`."""
    out: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(path / name)
        named = {**config, **(_as_dict(config.get("extra_special_tokens")))}
        for key, value in named.items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                out[key] = text
    return out


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one's text."""
    last = dict(messages[-1])
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + _END_OF_MESSAGE
        return [*messages[:-1], last]
    parts = list(content) if isinstance(content, list) else []
    for index in range(len(parts) - 1, -1, -1):
        if parts[index].get("type") == "text":
            text = parts[index]["text"] + _END_OF_MESSAGE
            last["content"] = [*parts[:index], {"type": "text", "text": text}, *parts[index + 1 :]]
            return [*messages[:-1], last]
    raise InvalidRequest("the final message has no text to continue", "continue_final_message")


def _cut_at_mark(text: str) -> str:
    """The prompt up to the mark, without blanks that a trimming template would have cut."""
    bare = _END_OF_MESSAGE.rstrip()
    before, found, after = text.rpartition(bare)
    if not found:
        raise InvalidRequest(
            "the chat template does not show the final message", "continue_final_message"
        )
    return before if after.startswith(" ") else before.rstrip()


@functools.lru_cache(maxsize=32)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the escapes for HTML of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)  # noqa: DTZ005 - local time, as templates expect
