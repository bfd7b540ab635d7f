"""`/v1/responses/render`: a Responses request as a chat (wire-protocol §9.8).

Stateless: history comes inline; what a server would have to remember is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.errors import InvalidRequest, StateNotKept
from protocol.generate import GenerateRequest
from protocol.sampling import Int64
from render.converted import Converted, converted

_LOGPROBS = "message.output_text.logprobs"


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a Responses request, with the contract's extensions."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = False
    max_output_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = "disabled"
    top_logprobs: Int64 | None = 0
    include: list[str] | None = None
    stream: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_payload: str = "tensors"
    return_token_ids: bool | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    request_id: str | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


_SHARED = (
    "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "ignore_eos", "parallel_tool_calls",
    "stream", "chat_template_kwargs", "mm_processor_kwargs", "mm_payload", "return_token_ids",
    "skip_special_tokens", "include_stop_str_in_output", "request_id", "cache_salt", "priority",
    "kv_transfer_params", "ec_transfer_params",
)  # fmt: skip

_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.type": "text.format.type",
    "response_format.json_schema.schema": "text.format.schema",
    "tool_choice.function.name": "tool_choice.name",
}


def to_chat(request: ResponsesRequest) -> Converted:
    """The chat that the request stands for.

    Raises:
        InvalidRequest: it needs what only a server with a memory has, or a part is malformed.
    """
    _refuse_state(request)
    builder = _Builder()
    if request.instructions:
        builder.add({"role": "system", "content": request.instructions}, "instructions")
    if isinstance(request.input, str):
        builder.add({"role": "user", "content": request.input}, "input")
    else:
        for index, item in enumerate(request.input):
            builder.item(item, f"input[{index}]")
    builder.close("input")
    wants_logprobs = _LOGPROBS in (request.include or [])
    fields = {name: getattr(request, name) for name in _SHARED}
    fields |= {
        "messages": builder.messages,
        "max_completion_tokens": request.max_output_tokens,
        "logprobs": wants_logprobs,
        "top_logprobs": (request.top_logprobs or 0) if wants_logprobs else 0,
        "tools": _tools(request.tools),
        "tool_choice": _tool_choice(request.tool_choice) if request.tools else None,
        "response_format": _response_format(request.text),
        "reasoning_effort": (request.reasoning or {}).get("effort"),
        "truncate_prompt_tokens": -1 if request.truncation not in (None, "disabled") else None,
    }
    return converted(fields, builder.sources, _NAMES)


def with_transfer_params(request: ResponsesRequest, rendered: GenerateRequest) -> GenerateRequest:
    """Transfer parameters at the top level too, as this endpoint alone has them (§2.8).

    It alone does not say whether the reasoning is over (§9.8).
    """
    return msgspec.structs.replace(
        rendered,
        reasoning_ended=None,
        kv_transfer_params=request.kv_transfer_params,
        ec_transfer_params=request.ec_transfer_params,
    )


def _refuse_state(request: ResponsesRequest) -> None:
    if request.previous_response_id is not None:
        raise StateNotKept(
            "previous_response_id is not supported by the stateless render endpoint: this server "
            "stores no responses; send the history inline, in `input`.",
            "previous_response_id",
        )
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise StateNotKept(f"{name} is not supported: this server stores nothing", name)
    if request.background:
        raise InvalidRequest("background is not supported by this server", "background")
    if request.mm_payload not in ("tensors", "none"):
        raise InvalidRequest("mm_payload must be 'tensors' or 'none'", "mm_payload")


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Flat function tools in the nested form of chats."""
    if not tools:
        return None
    out = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise InvalidRequest(
                "only function tools are supported by this server", f"tools[{index}].type"
            )
        function = {key: value for key, value in tool.items() if key != "type"}
        out.append({"type": "function", "function": function})
    return out


class _Builder:
    """Messages as items come; reasoning and calls join the assistant's message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sources: list[str] = []
        self._reasoning = ""

    def add(self, message: dict[str, Any], source: str) -> None:
        self.messages.append(message)
        self.sources.append(source)

    def item(self, item: dict[str, Any], at: str) -> None:
        kind = item.get("type", "message")
        match kind:
            case "message":
                self._message(item, at)
            case "reasoning":
                self._reasoning += _reasoning_text(item)
            case "function_call":
                self._call(item, at)
            case "function_call_output":
                self._output(item, at)
            case _:
                raise InvalidRequest(
                    f"input items of type {kind!r} are not supported", f"{at}.type"
                )

    def close(self, at: str) -> None:
        """Reasoning that nothing followed is a message of its own."""
        if self._reasoning:
            self.add(self._with_reasoning({"role": "assistant", "content": ""}), at)

    def _message(self, item: dict[str, Any], at: str) -> None:
        message = {"role": item.get("role"), "content": item.get("content")}
        if message["role"] == "assistant":
            message = self._with_reasoning(message)
        self.add(message, at)

    def _call(self, item: dict[str, Any], at: str) -> None:
        name = item.get("name")
        if not isinstance(name, str):
            raise InvalidRequest("a function call needs a name", f"{at}.name")
        call = {
            "id": item.get("call_id") or item.get("id"),
            "type": "function",
            "function": {"name": name, "arguments": item.get("arguments", "{}")},
        }
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and not self._reasoning:
            last.setdefault("tool_calls", []).append(call)
            return
        self.add(
            self._with_reasoning({"role": "assistant", "content": None, "tool_calls": [call]}), at
        )

    def _output(self, item: dict[str, Any], at: str) -> None:
        output = item.get("output")
        if not isinstance(output, str | list):
            raise InvalidRequest("output must be text or parts", f"{at}.output")
        self.add({"role": "tool", "tool_call_id": item.get("call_id"), "content": output}, at)

    def _with_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._reasoning:
            message = {**message, "reasoning": self._reasoning}
            self._reasoning = ""
        return message


def _reasoning_text(item: dict[str, Any]) -> str:
    """The reasoning, or where a server kept that to itself its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            return "".join(text for text in texts if isinstance(text, str))
    return ""


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A named function as chat has it; another API's tools are refused as chat refuses them."""
    if isinstance(choice, dict) and "name" in choice:
        return {"type": choice.get("type"), "function": {"name": choice["name"]}}
    return choice


def _response_format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as chat has it: there what belongs to a schema is one level deeper."""
    form = (text or {}).get("format")
    if not isinstance(form, dict):
        return None
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
