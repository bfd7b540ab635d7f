"""A chat's messages, checked: what the template sees, and the media in the order they appear.

Content parts are those of the contract (wire-protocol §9.2). A part that the model cannot take is
an error naming it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from protocol.errors import InvalidRequest, SchemaViolation
from render.embeds import EmbedRef
from render.families.base import Placeholder
from render.literals import Literals

ContentFormat = Literal["openai", "string"]

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
_EMBED_PARTS = {"image_embeds": "image", "audio_embeds": "audio", "video_embeds": "video"}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_GUARDED_ROLES = frozenset({"user", "tool", "function"})
"""Roles whose text may hold no special token at all; in the others media placeholders alone are
kept out, since histories and system prompts carry control tokens on purpose."""


class MediaRef(NamedTuple):
    """One medium that a message refers to.

    Attributes:
        url: `data:` or http(s).
        param: the field it came from, e.g. `messages[0].content[1].image_url`.
    """

    modality: str
    url: str
    param: str


class Conversation(NamedTuple):
    """Messages as the template takes them, and their media in order."""

    messages: list[dict[str, Any]]
    media: list[MediaRef | EmbedRef]


def parse(
    messages: list[dict[str, Any]],
    placeholders: Mapping[str, Placeholder],
    form: ContentFormat,
    literals: Literals,
    *,
    embeds: bool = False,
) -> Conversation:
    """Check messages and bring them into the template's form.

    Args:
        messages: as the client sent them.
        placeholders: of the model's modalities.
        form: what the template takes.
        literals: keep special tokens out of text.
        embeds: whether embeddings are taken in place of media.

    Raises:
        InvalidRequest: names the field.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty", "messages")
    parser = _Parser(placeholders, form, literals, embeds)
    parsed = [parser.message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    return Conversation(parsed, parser.media)


class _Parser:
    def __init__(
        self,
        placeholders: Mapping[str, Placeholder],
        form: ContentFormat,
        literals: Literals,
        embeds: bool,
    ) -> None:
        self._placeholders = placeholders
        self._form = form
        self._literals = literals
        self._embeds = embeds
        self.media: list[MediaRef | EmbedRef] = []

    def message(self, message: dict[str, Any], at: str) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise SchemaViolation(f"role must be one of {', '.join(sorted(_ROLES))}", f"{at}.role")
        content = message.get("content")
        media_only = role not in _GUARDED_ROLES
        if content is None and role in ("user", "system", "developer"):
            raise InvalidRequest(f"a {role} message needs content", f"{at}.content")
        out: dict[str, Any] = {
            "role": role,
            "content": self._content(content, f"{at}.content", media_only, role),
        }
        for key in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            value = message.get(key)
            if value is not None:
                if not isinstance(value, str):
                    raise InvalidRequest(f"{key} must be a string", f"{at}.{key}")
                out[key] = self._literals.mark(value, media_only=media_only)
        if role == "assistant":
            reasoning = out.get("reasoning_content", out.get("reasoning"))
            if reasoning is not None:  # templates know it by any of three names
                out |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
            calls = message.get("tool_calls")
            if calls:
                out["tool_calls"] = self._literals.mark(
                    _tool_calls(calls, f"{at}.tool_calls"), media_only=True
                )
        if role == "developer" and message.get("tools"):
            out["tools"] = self._literals.mark(message["tools"], media_only=True)
        return out

    def _content(self, content: Any, at: str, media_only: bool, role: str) -> Any:
        if content is None:
            parts: list[Any] = []
        elif isinstance(content, str):
            parts = [content]
        elif isinstance(content, list):
            parts = content
        else:
            raise SchemaViolation("content must be a string or a list of parts", at)
        out: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            where = f"{at}[{index}]" if isinstance(content, list) else at
            out.append(self._part(part, where, media_only))
        if self._form == "openai" and role != "tool":
            return out
        texts = [part["text"] for part in out if part["type"] == "text"]
        marks = [self._placeholders[p["type"]].text for p in out if p["type"] != "text"]
        return "\n".join([*marks, *texts])

    def _part(self, part: Any, at: str, media_only: bool) -> dict[str, Any]:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            raise InvalidRequest("a content part must be an object or a string", at)
        kind = part.get("type") or _kind_of(part)
        if not isinstance(kind, str):
            raise InvalidRequest("a content part needs a type", f"{at}.type")
        if kind in _TEXT_PARTS:
            key = _TEXT_PARTS[kind]
            text = part.get(key)
            if not isinstance(text, str):
                raise InvalidRequest(f"{key} must be a string", f"{at}.{key}")
            return {"type": "text", "text": self._literals.mark(text, media_only=media_only)}
        if kind in _MEDIA_PARTS:
            return self._medium(part, kind, at)
        if kind in _EMBED_PARTS:
            return self._embedding(part, kind, at)
        if kind == "prompt_embeds":
            raise InvalidRequest("prompt_embeds parts are not accepted", f"{at}.type")
        known = ", ".join(sorted([*_TEXT_PARTS, *_MEDIA_PARTS, *_EMBED_PARTS]))
        raise InvalidRequest(
            f"unknown content part type {kind!r}; supported are {known}", f"{at}.type"
        )

    def _medium(self, part: dict[str, Any], kind: str, at: str) -> dict[str, Any]:
        modality = _MEDIA_PARTS[kind]
        key = "image_url" if kind == "input_image" else kind
        param = f"{at}.{key}"
        self._check_taken(modality, param)
        uuid = part.get("uuid")
        if uuid is not None and not isinstance(uuid, str):
            raise InvalidRequest("uuid must be a string", f"{at}.uuid")
        value = part.get(key)
        if kind == "input_audio":
            value = _audio_url(value, param)
        elif isinstance(value, dict):
            value = value.get("url")
        if value is None and uuid is not None:
            index = sum(ref.modality == modality for ref in self.media)
            raise InvalidRequest(
                f"Cache miss for {modality} at index {index} but data is not provided.", param
            )
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"{key} needs a non-empty url", param)
        self.media.append(MediaRef(modality, value, param))
        return {"type": modality}

    def _embedding(self, part: dict[str, Any], kind: str, at: str) -> dict[str, Any]:
        modality, value, uuid = _EMBED_PARTS[kind], part.get(kind), part.get("uuid")
        if not self._embeds:
            raise InvalidRequest(
                f"You must set `enable_mm_embeds` on the server to input `{kind}`", f"{at}.type"
            )
        self._check_taken(modality, f"{at}.{kind}")
        if uuid is not None and not isinstance(uuid, str):
            raise InvalidRequest("uuid must be a string", f"{at}.uuid")
        given = {kind: value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            raise InvalidRequest(f"{kind} must be an object or base64", f"{at}.{kind}")
        self.media.append(EmbedRef(modality, given, uuid, f"{at}.{kind}"))
        return {"type": modality}

    def _check_taken(self, modality: str, param: str) -> None:
        if modality not in self._placeholders:
            takes = ", ".join(self._placeholders) or "text only"
            raise InvalidRequest(f"this model does not take {modality} input ({takes})", param)


def _kind_of(part: dict[str, Any]) -> str | None:
    """The type of a part that does not state it."""
    for kind in ("text", "image_url", "video_url", "audio_url", "input_audio", "refusal"):
        if kind in part:
            return kind
    return None


def _audio_url(value: Any, param: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        raise InvalidRequest("input_audio needs data and format", param)
    return f"data:audio/{value.get('format', 'wav')};base64,{value['data']}"


def _tool_calls(calls: Any, at: str) -> list[dict[str, Any]]:
    """Tool calls whose arguments are objects, as templates expect them."""
    if not isinstance(calls, list):
        raise InvalidRequest("tool_calls must be a list", at)
    out = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("a tool call needs a function with a name", f"{at}[{index}]")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments)
            except (msgspec.DecodeError, RecursionError):
                arguments = {}  # a model wrote them: its conversation must be able to go on
        if not isinstance(arguments, dict):
            arguments = {}
        out.append({**call, "function": {**function, "arguments": arguments}})
    return out
