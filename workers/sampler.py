"""From logits to tokens.

The draw of step t of choice i is a function of (seed, i, t) alone: a uniform number from a hash,
looked up in the cumulated probabilities. So a request can go on after t tokens on another replica
and draws what it would have drawn, alone or in a batch, on CPU or CUDA.

Order, per row: penalties, the answer's form, the ban on ending early, temperature, min-p, top-k,
top-p, draw.
Logprobs are of the model's raw logits.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protocol.generate import TokenLogprob, TopLogprob
from protocol.sampling import SamplingParams
from workers.grammar import Constraint

_NO_LOGPROB = -9999.0
"""What the contract writes for -inf and NaN."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample.

    Attributes:
        row: of the logits.
        params: how.
        seed, choice, step: the key of the random number.
        prompt, outputs: what the penalties and the constraint look at.
        banned: ids that may not be drawn now (`min_tokens`), unless the form allows no other.
        constraint: the answer's form, None for any.
    """

    row: int
    params: SamplingParams
    seed: int
    choice: int
    step: int
    prompt: Sequence[int]
    outputs: Sequence[int]
    banned: frozenset[int] = frozenset()
    constraint: Constraint | None = None


def uniform(seed: int, choice: int, step: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    key = struct.pack("<qqq", (seed + 2**63) % 2**64 - 2**63, choice, step)
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def sample(
    logits: torch.Tensor, draws: Sequence[Draw]
) -> tuple[list[int], list[TokenLogprob | None]]:
    """A token per draw, and its logprob entry where it is asked for.

    Args:
        logits: [rows, vocab], float32; several draws may share a row.
        draws: at least one.
    """
    rows = torch.tensor([draw.row for draw in draws], device=logits.device)
    plain = all(_is_plain(draw) for draw in draws)
    in_order = len(draws) == len(logits) and all(i == draw.row for i, draw in enumerate(draws))
    picked = logits if plain and in_order else logits[rows]
    tokens = picked.argmax(-1) if plain else _sample_rows(_adjusted(picked, draws), draws)
    chosen: list[int] = tokens.tolist()
    entries: list[TokenLogprob | None] = [None] * len(draws)
    asked = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None]
    if asked:
        index = torch.tensor(asked, device=logits.device)
        raw = torch.log_softmax(logits[rows[index]], dim=-1)
        for i, row in zip(asked, raw, strict=True):
            entries[i] = _logprob_entry(row, chosen[i], draws[i].params.logprobs or 0)
    return chosen, entries


def _is_plain(draw: Draw) -> bool:
    free = not draw.banned and draw.constraint is None
    return draw.params.greedy and free and not draw.params.penalised


def _adjusted(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Logits after penalties and bans; a copy."""
    logits = logits.clone()
    for row, draw in zip(logits, draws, strict=True):
        if draw.params.penalised:
            _penalise(row, draw)
        banned = list(draw.banned)
        if draw.constraint is not None:
            allowed = draw.constraint.allowed(draw.outputs)
            row.masked_fill_(torch.from_numpy(~allowed).to(row.device), -math.inf)
            if not allowed.sum() > allowed[banned].sum():
                banned = []
        if banned:
            row[torch.tensor(banned, device=row.device)] = -math.inf
    return logits


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    params = draw.params
    vocab = len(row)
    outputs = torch.tensor(draw.outputs, dtype=torch.int64, device=row.device)
    counts = torch.bincount(outputs, minlength=vocab)[:vocab]
    if params.repetition_penalty != 1.0:
        seen = counts > 0
        seen[torch.tensor(draw.prompt, dtype=torch.int64, device=row.device)] = True
        factor = torch.where(row > 0, 1 / params.repetition_penalty, params.repetition_penalty)
        row.mul_(torch.where(seen, factor, 1.0))
    row.sub_(params.frequency_penalty * counts)
    row.sub_(params.presence_penalty * (counts > 0))


def _sample_rows(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    greedy = torch.tensor([draw.params.greedy for draw in draws], device=logits.device)
    best = logits.argmax(-1)
    if bool(greedy.all()):
        return best
    column = torch.tensor(
        [
            [
                draw.params.effective_temperature or 1.0,
                draw.params.top_p,
                min(draw.params.top_k, logits.shape[1])
                if draw.params.top_k > 0
                else logits.shape[1],
                draw.params.min_p,
                uniform(draw.seed, draw.choice, draw.step),
            ]
            for draw in draws
        ],
        dtype=torch.float64,
        device=logits.device,
    )
    temperature, top_p, top_k, min_p, dice = (c[:, None] for c in column.unbind(1))
    probs = torch.softmax(logits.double() / temperature, dim=-1)
    probs = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
    if any(draw.params.top_p < 1 or draw.params.top_k > 0 for draw in draws):
        ordered, index = probs.sort(stable=True, dim=-1, descending=True)
        ranks = torch.arange(logits.shape[1], device=logits.device)
        ordered = ordered.masked_fill(ranks >= top_k, 0.0)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, index, ordered)
    total = probs.cumsum(-1)
    drawn = torch.searchsorted(total, dice * total[:, -1:], right=True)[:, 0]
    return torch.where(greedy, best, drawn.clamp(max=logits.shape[1] - 1))


def _logprob_entry(row: torch.Tensor, token: int, count: int) -> TokenLogprob:
    """The entry of a sampled token with the `count` likeliest alternatives, itself first."""
    count = len(row) if count < 0 else min(count, len(row))
    own = float(row[token])
    rank = int((row > row[token]).sum()) + 1
    top = [TopLogprob(token, _finite(own), rank)]
    if count:
        values, ids = row.topk(count)
        top += [
            TopLogprob(other, _finite(value), place)
            for place, (other, value) in enumerate(
                zip(ids.tolist(), values.tolist(), strict=True), start=1
            )
            if other != token
        ]
    return TokenLogprob(token, _finite(own), rank, top)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _NO_LOGPROB
