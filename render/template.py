"""The model's chat template: messages to the prompt's text."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jinja2

from protocol.errors import InvalidRequest
from render.checkpoint import template_source
from render.messages import ContentFormat

_PROBE = "triptych-probe"


class ChatTemplate:
    """A Hugging Face chat template, rendered by transformers.

    Args:
        path: the checkpoint's directory.
        override: a template that replaces the checkpoint's, or None.
    """

    def __init__(self, path: Path, override: str | None = None) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(str(path))
        self._template = override if override is not None else template_source(path)
        self._formats: dict[str, ContentFormat] = {}

    @property
    def source(self) -> str | None:
        """The default template's text, None where the model has none."""
        return self._template

    @property
    def reserved(self) -> frozenset[str]:
        """Arguments of `apply_chat_template` that no client may set through template kwargs."""
        arguments = inspect.signature(self._tokenizer.apply_chat_template).parameters
        return frozenset(arguments) | {"messages", "sanitize_control_tokens"}

    def content_format(self, template: str | None = None) -> ContentFormat:
        """Whether a template takes content as a list of parts or as one string.

        Found by rendering a probe: a template that knows only strings prints a list as it is.
        """
        source = template or self._template
        if source is None:
            return "string"
        if source not in self._formats:
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
        kwargs: dict[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Raises:
            InvalidRequest: the template refuses the messages, or there is none.
        """
        source = template or self._template
        if source is None:
            raise InvalidRequest("the model has no chat template", "messages")
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=source,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(kwargs or {}),
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refused: {error}", "messages") from None
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as e:
            # A template meets a value that it was not written for.
            raise InvalidRequest(f"the chat template failed: {e}", "messages") from None
        return str(text)

    def _probe(self, source: str) -> ContentFormat:
        messages = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        try:
            text = self.render(messages, template=source)
        except InvalidRequest:
            return "string"
        return "openai" if _PROBE in text and f"'text': '{_PROBE}'" not in text else "string"
