"""`/v1/messages/render`: an Anthropic Messages request as a chat (wire-protocol §9.8)."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.errors import InvalidRequest, SchemaViolation
from protocol.sampling import Int64
from render.converted import Converted, converted

_BILLING = "x-anthropic-billing-header"


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a Messages request, with the contract's extensions."""

    messages: list[dict[str, Any]]
    max_tokens: Int64
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    stream: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_payload: str = "tensors"
    request_id: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


_SHARED = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "stream", "mm_processor_kwargs",
    "mm_payload", "request_id", "cache_salt", "kv_transfer_params", "ec_transfer_params",
)  # fmt: skip


def to_chat(request: MessagesRequest) -> Converted:
    """The chat that the request stands for.

    Raises:
        InvalidRequest: a block is malformed or of a kind that is not supported.
    """
    if request.mm_payload not in ("tensors", "none"):
        raise InvalidRequest("mm_payload must be 'tensors' or 'none'", "mm_payload")
    messages: list[dict[str, Any]] = []
    sources: list[str] = []
    system = _system(request.system)
    if system:
        messages.append({"role": "system", "content": system})
        sources.append("system")
    for index, message in enumerate(request.messages):
        at = f"messages[{index}]"
        for one in _message(message, at):
            messages.append(one)
            sources.append(at)
    kwargs = dict(request.chat_template_kwargs or {})
    if request.thinking is not None:
        kwargs.setdefault("enable_thinking", request.thinking.get("type") != "disabled")
    fields = {name: getattr(request, name) for name in _SHARED}
    fields |= {
        "messages": messages,
        "stop": request.stop_sequences,
        "tools": _tools(request.tools),
        "tool_choice": _tool_choice(request),
        "parallel_tool_calls": (
            False if (request.tool_choice or {}).get("disable_parallel_tool_use") is True else None
        ),
        "chat_template_kwargs": kwargs or None,
    }
    return converted(
        fields, sources, {"stop": "stop_sequences", "tool_choice.function.name": "tool_choice.name"}
    )


def _system(system: str | list[dict[str, Any]] | None) -> str:
    """The system prompt without the lines that a client's billing adds."""
    if system is None or isinstance(system, str):
        return system or ""
    texts = []
    for index, block in enumerate(system):
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            raise InvalidRequest("a system block must be text", f"system[{index}]")
        if not text.startswith(_BILLING):
            texts.append(text)
    return "".join(texts)


def _message(message: dict[str, Any], at: str) -> list[dict[str, Any]]:
    """One message as chat messages: results of tools come before the rest of a user's."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise SchemaViolation("role must be user or assistant", f"{at}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequest("content must be a string or a list of blocks", f"{at}.content")
    blocks = _Blocks()
    for index, block in enumerate(content):
        blocks.add(block, f"{at}.content[{index}]")
    return blocks.messages(role)


class _Blocks:
    """The blocks of one message, sorted by where a chat has them."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._thinking: list[str] = []

    def add(self, block: Any, at: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "text":
                self._parts.append({"type": "text", "text": block.get("text")})
            case "image":
                self._parts.append(_image(block, at))
            case "thinking":
                self._thinking.append(str(block.get("thinking") or ""))
            case "redacted_thinking":
                pass  # it is encrypted for another server
            case "tool_use":
                self._calls.append(_call(block, at))
            case "tool_result":
                self._results.append(_result(block, at))
            case _:
                raise InvalidRequest(f"blocks of type {kind!r} are not supported", f"{at}.type")

    def messages(self, role: str) -> list[dict[str, Any]]:
        if role == "user":
            rest = [{"role": role, "content": self._parts}]
            return self._results + (rest if self._parts or not self._results else [])
        answer: dict[str, Any] = {"role": role, "content": self._parts or None}
        if self._thinking:
            answer["reasoning"] = "".join(self._thinking)
        if self._calls:
            answer["tool_calls"] = self._calls
        return [*self._results, answer]


def _image(block: dict[str, Any], at: str) -> dict[str, Any]:
    source = block.get("source")
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            pass
        case _:
            raise InvalidRequest("an image needs a base64 or url source", f"{at}.source")
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: dict[str, Any], at: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise InvalidRequest("a tool_use block needs a name and an input object", at)
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _result(block: dict[str, Any], at: str) -> dict[str, Any]:
    content = block.get("content", "")
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") != "text":
                raise InvalidRequest(
                    "only text is supported in a tool's result", f"{at}.content[{index}]"
                )
    elif not isinstance(content, str):
        raise InvalidRequest("content must be a string or a list of blocks", f"{at}.content")
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    out = []
    for index, tool in enumerate(tools):
        if not isinstance(tool.get("name"), str) or "input_schema" not in tool:
            raise InvalidRequest("a tool needs a name and an input_schema", f"tools[{index}]")
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        out.append({"type": "function", "function": function})
    return out


def _tool_choice(request: MessagesRequest) -> str | dict[str, Any] | None:
    choice = request.tool_choice or {}
    kind = choice.get("type")
    if not request.tools or kind is None:
        return None
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return "required" if kind == "any" else str(kind)
