"""`sampling_params` of a generate request (wire-protocol §2.7).

Every field of the contract is here, so that an unknown key is ignored and a known one is never
lost. `UNSUPPORTED` lists those that our engine does not honour: set to anything but a neutral
value, they are refused with 400 naming them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

import msgspec

from protocol.errors import InvalidRequest

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Integers beyond 64 bit are refused everywhere: neither MessagePack nor a tensor holds them."""

GREEDY_EPSILON = 0.01
"""Temperatures between 0 and this are raised to it."""

MAX_LOGPROBS = 20
"""Most alternatives per position that a server reports, unless configured otherwise."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "prompt_logprob_token_ids": (None,),
    "prompt_logprob_start": (None, 0),
    "logprob_token_ids": (None, []),
    "flat_logprobs": (False,),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "prompt_logprobs": (None,),
    "thinking_token_budget": (None,),
    "repetition_detection": (None,),
    "watermarking": (None,),
    "routed_experts_prompt_start": (0,),
    "trace_decode_token_ids": (None,),
}
"""Field -> the values that mean "off"; the tests compare its keys with the schema."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample. An absent `max_tokens` means what is left of the context."""

    n: Int64 = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int64 = 0
    min_p: float = 0.0
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool = False
    max_tokens: Int64 | None = None
    min_tokens: Int64 = 0
    logprobs: Int64 | None = None
    prompt_logprobs: Int64 | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: Int64 | None = None
    logprob_token_ids: list[Int64] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Int64 = 0
    stream_interval: Int64 | None = None
    skip_clone: bool = False
    output_text_buffer_length: Int64 = 0
    structured_outputs: Any = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: Int64 | None = None
    repetition_detection: Any = None
    watermarking: Any = None
    routed_experts_prompt_start: Int64 = 0
    trace_decode_token_ids: Any = None

    def __post_init__(self) -> None:
        for failed, message in (
            (self.n < 1, f"n must be at least 1, got {self.n}."),
            (
                not -2 <= self.presence_penalty <= 2,
                f"presence_penalty must be in [-2, 2], got {self.presence_penalty}.",
            ),
            (
                not -2 <= self.frequency_penalty <= 2,
                f"frequency_penalty must be in [-2, 2], got {self.frequency_penalty}.",
            ),
            (
                not 0 < self.repetition_penalty < math.inf,
                f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.",
            ),
            (
                self.temperature < 0,
                f"temperature must be non-negative, got {self.temperature}.",
            ),
            (
                not self.temperature <= 2,
                f"temperature must be in [0, 2], got {self.temperature}.",
            ),
            (not 0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}."),
            (
                self.top_k < -1,
                f"top_k must be 0 (disable), or at least 1, got {self.top_k}.",
            ),
            (not 0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p}."),
            (
                self.max_tokens is not None and self.max_tokens < 1,
                f"max_tokens must be at least 1, got {self.max_tokens}.",
            ),
            (
                self.min_tokens < 0,
                f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.",
            ),
            (
                self.max_tokens is not None and self.min_tokens > self.max_tokens,
                f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, "
                f"got {self.min_tokens}.",
            ),
            (
                self.stream_interval is not None and self.stream_interval < 1,
                f"stream_interval must be at least 1, got {self.stream_interval}.",
            ),
            (
                self.logprobs is not None and self.logprobs < -1,
                f"logprobs must be non-negative or -1, got {self.logprobs}.",
            ),
            ("" in self.stop_strings, "stop cannot contain an empty string."),
            (
                bool(self.stop_strings) and not self.detokenize,
                "stop strings are only supported when detokenize is True. "
                "Set detokenize=True to use stop.",
            ),
            (
                self.n > 1 and self.temperature == 0,
                f"n must be 1 when using greedy sampling, got {self.n}.",
            ),
            (
                self.logprob_token_ids is not None and len(self.logprob_token_ids) > 128,
                "logprob_token_ids may hold at most 128 ids.",
            ),
        ):
            if failed:
                raise ValueError(message)

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the odds of later ones."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @property
    def effective_temperature(self) -> float:
        """The temperature that is used: 0, or at least GREEDY_EPSILON."""
        return 0.0 if self.greedy else max(self.temperature, GREEDY_EPSILON)

    @property
    def effective_seed(self) -> int | None:
        """The seed, -1 meaning none."""
        return None if self.seed == -1 else self.seed

    def refuse_unsupported(self, *, max_logprobs: int = MAX_LOGPROBS) -> None:
        """Refuse what the engine would otherwise ignore.

        Raises:
            InvalidRequest: names the field.
        """
        for name, neutral in UNSUPPORTED.items():
            if getattr(self, name) not in neutral:
                raise InvalidRequest(
                    f"{name} is not supported by this server", f"sampling_params.{name}"
                )
        if self.logprobs is not None and self.logprobs > max_logprobs:
            raise InvalidRequest(
                f"Requested sample logprobs of {self.logprobs}, which is greater than max "
                f"allowed: {max_logprobs}",
                "sampling_params.logprobs",
            )
