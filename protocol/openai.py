"""The OpenAI-style requests and answers of the public edge, with the contract's extensions.

Unknown keys are ignored as OpenAI-compatible servers do; what is known and cannot be honoured is
listed in `CHAT_UNSUPPORTED` and `COMPLETION_UNSUPPORTED` and refused with 400.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from protocol.errors import InvalidRequest
from protocol.generate import (
    FinishReason,
    GenerateChunk,
    GenerateResponse,
    StreamOptions,
    Usage,
    check_cache_salt,
)
from protocol.sampling import Int64

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Whether the vocabulary has it is for whoever knows the vocabulary to say."""


class _SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completions have in common. None means "the model's default"."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool = False
    max_tokens: Int64 | None = None
    min_tokens: Int64 = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Int64 | None = None
    structured_outputs: Any = None
    response_format: dict[str, Any] | None = None
    use_beam_search: bool = False
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_token_offsets: bool | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    user: str | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        if self.cache_salt is not None:
            try:
                check_cache_salt(self.cache_salt)
            except ValueError as error:
                raise InvalidRequest(str(error), "cache_salt") from None


class ChatCompletionRequest(_SamplingFields, frozen=True, kw_only=True):
    """`/v1/chat/completions`. Messages are checked by render, which knows the content parts."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = False
    top_logprobs: Int64 | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    echo: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
            )
        if self.top_logprobs is not None and self.top_logprobs < 0 and self.top_logprobs != -1:
            raise InvalidRequest("`top_logprobs` must be a positive value or -1.", "top_logprobs")


class CompletionRequest(_SamplingFields, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    max_tokens: Int64 | None = 16
    logprobs: Int64 | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: Int64 | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is None or self.prompt == []:
            raise InvalidRequest("prompt must be given, and not be empty", "prompt")
        if isinstance(self.prompt, list) and len({type(part) for part in self.prompt}) > 1:
            raise ValueError("prompt must be a string, token ids, or a list of either")


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "prompt_logprobs": (None,),
    "use_beam_search": (False,),
    "priority": (0,),
}

CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **_UNSUPPORTED,
    "documents": (None, []),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "echo": (False,),
}
"""Field -> the values that mean "off"."""

COMPLETION_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **_UNSUPPORTED,
    "suffix": (None, ""),
    "best_of": (None, 1),
}
"""Field -> the values that mean "off"."""


def refuse_unsupported(request: ChatCompletionRequest | CompletionRequest) -> None:
    """Refuse what would otherwise be ignored.

    Raises:
        InvalidRequest: names the field.
    """
    chat = isinstance(request, ChatCompletionRequest)
    for name, neutral in (CHAT_UNSUPPORTED if chat else COMPLETION_UNSUPPORTED).items():
        if getattr(request, name) not in neutral:
            raise InvalidRequest(f"{name} is not supported by this server", name)


# --- answers ---------------------------------------------------------------------------------


class TokenTextLogprob(msgspec.Struct, frozen=True):
    """A token of `logprobs.content` in chat answers."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[dict[str, Any]] = []


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenTextLogprob] | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message; `tool_calls` is left out when there are none."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds; keys without news are left out."""

    role: Literal["assistant"] | None = None
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`/v1/completions`, whole; a chunk of a stream has the same form."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    kv_transfer_params: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `/v1/models`."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: Literal["model"] = "model"
    owned_by: str = "triptych"
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


# --- derender --------------------------------------------------------------------------------


class ChatDerenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`/v1/chat/completions/derender`, one shot or one chunk of a stream (wire-protocol §8).

    `stream_state` is opaque to the caller: null in the first call, then what the last one gave.
    """

    stream: bool = False
    model: str | None = None
    generate_response: GenerateResponse | None = None
    generate_chunk: GenerateChunk | None = None
    stream_state: dict[str, Any] | None = None
    prompt_tokens: int = 0
    prompt_token_ids: list[int] | None = None
    chat_request: ChatCompletionRequest | None = None

    def __post_init__(self) -> None:
        if self.stream and self.generate_chunk is None:
            raise ValueError("generate_chunk is required when stream is true")
        if not self.stream and self.generate_response is None:
            raise ValueError("generate_response is required when stream is false")


class CompletionDerenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`/v1/completions/derender`."""

    stream: bool = False
    model: str | None = None
    generate_responses: list[GenerateResponse] | None = None
    generate_chunk: GenerateChunk | None = None
    stream_state: dict[str, Any] | None = None
    prompt_tokens: list[int] | int | None = None
    prompt_token_ids: list[list[int] | int | None] | None = None
    completion_request: CompletionRequest | None = None

    def __post_init__(self) -> None:
        if self.stream and self.generate_chunk is None:
            raise ValueError("generate_chunk is required when stream is true")
        if not self.stream and not self.generate_responses:
            raise ValueError("generate_responses must not be empty")
