"""What of a chat request this server does not honour, refused by name."""

from __future__ import annotations

from typing import Any

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from render.config import RenderConfig
from render.families.base import Family
from render.media_io import check_media_io
from render.structured import chosen
from render.template import RESERVED
from render.tool_definitions import shown


def check_trusted(request: ChatCompletionRequest, config: RenderConfig, family: Family) -> None:
    """Refuse what only a server that trusts its clients takes.

    Raises:
        InvalidRequest: names the field.
    """
    if request.chat_template is not None and not config.trust_request_chat_template:
        raise InvalidRequest(
            "chat_template is refused unless the server runs with --trust-request-chat-template",
            "chat_template",
        )
    if request.media_io_kwargs and not config.trust_request_mm_kwargs:
        raise InvalidRequest(
            "media_io_kwargs is refused unless the server runs with --trust-request-mm-kwargs",
            "media_io_kwargs",
        )
    check_media_io(request.media_io_kwargs, family.placeholders)
    for name in request.mm_processor_kwargs or {}:
        if not config.trust_request_mm_kwargs:
            raise InvalidRequest(
                "mm_processor_kwargs is refused unless the server runs with "
                "--trust-request-mm-kwargs",
                "mm_processor_kwargs",
            )
        if name not in family.mm_kwargs:
            raise InvalidRequest(
                f"mm_processor_kwargs.{name} is not supported for this model",
                f"mm_processor_kwargs.{name}",
            )


def template_kwargs(request: ChatCompletionRequest, config: RenderConfig) -> dict[str, Any]:
    """The template's arguments: the server's beneath the request's.

    Raises:
        InvalidRequest: the request sets one that is not its own to set.
    """
    given = request.chat_template_kwargs or {}
    for name in given:
        if name in RESERVED:
            raise InvalidRequest(
                f"chat_template_kwargs.{name} is set by the server", f"chat_template_kwargs.{name}"
            )
    kwargs = {**config.default_chat_template_kwargs, **given}
    if request.reasoning_effort is not None:
        kwargs["reasoning_effort"] = request.reasoning_effort
        kwargs.setdefault("enable_thinking", request.reasoning_effort != "none")
    return kwargs


def checked_tools(request: ChatCompletionRequest) -> list[dict[str, Any]] | None:
    """The tools that the template is shown.

    Raises:
        InvalidRequest: they do not have the contract's form, or the choice cannot be honoured.
    """
    tools, choice = request.tools, request.tool_choice
    if tools is None:
        if choice not in (None, "none"):
            raise InvalidRequest("tool_choice needs tools", "tool_choice")
        return None
    if not tools:
        raise InvalidRequest("tools must not be empty", "tools")
    definitions = shown(tools)
    chosen(tools, choice)
    return definitions
