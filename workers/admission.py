"""What a generate request must be before the engine sees it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from protocol.errors import InvalidRequest, NotFound
from protocol.generate import GenerateRequest
from protocol.sampling import MAX_LOGPROBS, SamplingParams
from workers.adapters.base import ModelShape
from workers.work import StopRules


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that can be run, as the engine needs it.

    Attributes:
        tokens: the prompt and the outputs to go on after.
        stop: when its choices end.
        seed: the request's own, or a random one.
        banned: ids that may not be drawn before `min_tokens`.
    """

    request: GenerateRequest
    tokens: list[int]
    stop: StopRules
    seed: int
    banned: frozenset[int]

    @property
    def params(self) -> SamplingParams:
        return self.request.sampling_params

    @property
    def resumed(self) -> list[int]:
        """Outputs that the request brought."""
        return self.request.resume_token_ids or []


@dataclass(frozen=True, slots=True)
class Limits:
    """What this worker takes.

    Attributes:
        names: names of the model that requests may give.
        max_len: tokens of context.
        max_seqs: most choices of a request.
        seed: of requests that bring none, None for a random one.
    """

    names: tuple[str, ...]
    max_len: int
    max_seqs: int
    seed: int | None = None


def admit(request: GenerateRequest, shape: ModelShape, limits: Limits) -> Admitted:
    """Check a request against the contract and this worker.

    Raises:
        InvalidRequest: names the field at fault, in the contract's words.
        NotFound: another model is asked for.
    """
    check_model(request.model, limits.names)
    request.refuse_unsupported()
    params = request.sampling_params
    resumed = request.resume_token_ids or []
    for name, ids in (("token_ids", request.token_ids), ("resume_token_ids", resumed)):
        for token in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token < shape.vocab:
                raise InvalidRequest(f"Token id {token} is out of vocabulary", name)
    tokens = request.token_ids + resumed
    if len(tokens) + 1 > limits.max_len:
        raise InvalidRequest(
            f"The decoder prompt (length {len(tokens)}) plus the number of requested output "
            f"tokens (at least 1) is longer than the maximum model length of {limits.max_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens plus "
            "multimodal tokens.",
            "token_ids",
        )
    if params.n > limits.max_seqs:
        raise InvalidRequest(
            f"sampling_params.n must be at most the server's max_num_seqs ({limits.max_seqs}), "
            f"got {params.n}.",
            "sampling_params.n",
        )
    if params.logprobs == -1 and shape.vocab > MAX_LOGPROBS:
        raise InvalidRequest(
            f"Requested sample logprobs of {shape.vocab}, which is greater than max allowed: "
            f"{MAX_LOGPROBS}",
            "sampling_params.logprobs",
        )
    room = limits.max_len - len(request.token_ids)
    max_tokens = min(room, params.max_tokens or shape.default_max_tokens or room)
    if resumed and (params.n > 1 or len(resumed) >= max_tokens):
        raise InvalidRequest(
            "resume_token_ids need n = 1 and fewer tokens than max_tokens", "resume_token_ids"
        )
    stop_ids = frozenset(t for t in params.stop_token_ids or () if 0 <= t < shape.vocab)
    eos = frozenset() if params.ignore_eos else shape.eos
    seed = params.effective_seed
    if seed is None:
        seed = limits.seed if limits.seed is not None else secrets.randbits(62)
    return Admitted(
        request,
        tokens,
        StopRules(max_tokens, params.min_tokens, limits.max_len, eos, stop_ids),
        seed,
        shape.eos | stop_ids if params.min_tokens else frozenset(),
    )


def check_model(name: str | None, names: tuple[str, ...]) -> None:
    """Accept one of the served names, or none at all.

    Raises:
        NotFound: in the contract's words.
    """
    if name and name not in names:
        raise NotFound(
            f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}.", "model"
        )
