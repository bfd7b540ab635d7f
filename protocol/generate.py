"""`/inference/v1/generate`: token ids in, token ids out (wire-protocol §2, §3).

Unknown keys are ignored, as vLLM does. `resume_token_ids` is ours.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.errors import InvalidRequest
from protocol.features import MultiModalFeatures
from protocol.ids import is_valid_id
from protocol.sampling import Int64, SamplingParams

FinishReason = Literal["stop", "length", "abort", "repetition", "tool_calls", "error"]

_SALT_FORBIDDEN = frozenset("@/\\\0")


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides tokens."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ReasoningParserKwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one object of the contract that forbids extra keys."""

    chat_template_kwargs: dict[str, Any] = {}


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt as tokens, its media as features, and how to sample.

    Attributes:
        token_ids: the prompt, placeholders expanded; at least one, none negative.
        features: the media, or None for text.
        ec_transfer_params: where embeddings are; needed where an item has no kwargs.
        kv_transfer_params: where KV blocks are, or a wish to hand them off.
        resume_token_ids: ours: tokens that this request has produced already. They count for
            penalties, limits and the sampling step, and generation goes on after them.
        reasoning_end: ours: the prompt opens the model's reasoning, which this token ends; the
            answer's form counts after it.
    """

    token_ids: list[Int64]
    sampling_params: SamplingParams
    request_id: str | None = None
    token_offsets: list[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: list[dict[str, Any]] | None = None
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    resume_token_ids: list[Int64] | None = None
    reasoning_end: str | None = None

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError("token_ids must not be empty")
        if min(self.token_ids) < 0:
            raise ValueError("token_ids must not contain negative values")
        if self.content_parts is not None and self.features is not None:
            raise ValueError("content_parts and features are mutually exclusive")
        if self.cache_salt is not None:
            check_cache_salt(self.cache_salt)
        if self.output_mode == "text" and not self.sampling_params.detokenize:
            raise ValueError("output_mode='text' requires sampling_params.detokenize to be true")
        if self.features is not None:
            self._check_features(self.features)

    def _check_features(self, features: MultiModalFeatures) -> None:
        if features.end > len(self.token_ids):
            raise ValueError("mm_placeholders must remain within the token_ids sequence")
        for item in features.items():
            held = item.kwargs is not None or item.handle is not None
            if not held and item.metadata is not None and not self.ec_transfer_params:
                raise ValueError("metadata-only multimodal items require ec_transfer_params")

    @property
    def ec_params(self) -> dict[str, Any] | None:
        """EC parameters from either place of the contract (§2.8), the top level first."""
        return self.ec_transfer_params or (self.sampling_params.extra_args or {}).get(
            "ec_transfer_params"
        )

    @property
    def kv_params(self) -> dict[str, Any] | None:
        """KV parameters from either place of the contract (§2.8), the top level first."""
        return self.kv_transfer_params or (self.sampling_params.extra_args or {}).get(
            "kv_transfer_params"
        )

    def refuse_unsupported(self) -> None:
        """Refuse what our engine does not honour.

        Raises:
            InvalidRequest: names the field.
        """
        if self.content_parts is not None:
            raise InvalidRequest("content_parts is not supported by this server", "content_parts")
        if self.priority != 0:
            raise InvalidRequest("priority is not supported by this server", "priority")
        if self.request_id is not None and not is_valid_id(self.request_id):
            raise InvalidRequest(
                "request_id must be printable ASCII, at most 256 characters", "request_id"
            )
        self.sampling_params.refuse_unsupported()


def check_cache_salt(salt: str) -> None:
    """Refuse a salt outside the contract (§2.1).

    Raises:
        ValueError: with the contract's message.
    """
    if not salt:
        raise ValueError("Parameter 'cache_salt' must be a non-empty string if provided.")
    if len(salt) > 128 or _SALT_FORBIDDEN & set(salt):
        raise ValueError(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain "
            "'@', '/', '\\\\', or NUL."
        )


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: None = None

    @classmethod
    def of(cls, prompt: int, completion: int) -> Usage:
        return cls(prompt, prompt + completion, completion)


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position: `rank` 1 is the likeliest."""

    token_id: int
    logprob: float
    rank: int | None = None
    token: str | msgspec.UnsetType = msgspec.UNSET
    bytes: list[int] | msgspec.UnsetType | None = msgspec.UNSET


class TokenLogprob(msgspec.Struct, frozen=True):
    """The sampled token's logprob and its alternatives, the sampled token first.

    `token` and `bytes` are there in text mode alone (in the alternatives too).
    """

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TopLogprob] = []
    token: str | msgspec.UnsetType = msgspec.UNSET
    bytes: list[int] | msgspec.UnsetType | None = msgspec.UNSET


class Logprobs(msgspec.Struct, frozen=True):
    """One entry per generated token; -inf and NaN are sent as -9999.0."""

    content: list[TokenLogprob] = []


class GenerateChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled sequence; the stop token stays the last of `token_ids`."""

    index: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] = []
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: list[dict[str, Any]] | None = None
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: Logprobs | None = None


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer when `stream` is off; we always write every key, and read less."""

    request_id: str
    model: str | None = None
    created: int | None = None
    usage: Usage | None = None
    choices: list[GenerateChoice]
    prompt_logprobs: list[Any] | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: list[int] | None = None
    mm_placeholders: dict[str, list[Any]] | None = None
    metrics: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: Literal["tokens", "text"] = "tokens"


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event: deltas of at most one choice, or the final usage."""

    request_id: str
    usage: Usage | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    mm_placeholders: dict[str, list[Any]] | msgspec.UnsetType = msgspec.UNSET
    output_mode: Literal["tokens", "text"] = "tokens"
    choices: list[GenerateChoice] = []
