"""Computes a step on the model. Used by the engine's thread alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from protocol.features import PlaceholderRange
from protocol.generate import TokenLogprob
from protocol.sampling import SamplingParams
from workers.adapters.base import Int64Array, LanguageModel, ModelShape
from workers.grammar import Constraint
from workers.kv_buffer import KvBuffer
from workers.paged_attention import plan_layout
from workers.sampler import Draw, sample
from workers.step import Chunk, Step
from workers.work import SequenceState


@dataclass(slots=True)
class Prompt:
    """What the runner knows of a request.

    Attributes:
        params, seed: how to sample.
        positions: [3, prompt tokens], None for a text prompt: the token's index on each axis.
        delta: position of a later token minus its index.
        placeholders: of the media, in prompt order.
        embeddings: per item [rows, embedding_width] once it is here.
        banned: ids that may not be drawn before `min_tokens`.
        constraints: choice -> the form of its answer, where one is asked for.
    """

    params: SamplingParams
    seed: int
    positions: Int64Array | None = None
    delta: int = 0
    placeholders: list[PlaceholderRange] = field(default_factory=list)
    embeddings: list[torch.Tensor | None] = field(default_factory=list)
    banned: frozenset[int] = frozenset()
    constraints: Mapping[int, Constraint] = field(default_factory=dict)


class ModelRunner:
    """The decoder, its KV cache and the requests' prompts.

    Args:
        model: the decoder with its weights.
        shape: its sizes.
        kv: the cache.
    """

    def __init__(self, model: LanguageModel, shape: ModelShape, kv: KvBuffer) -> None:
        self.kv = kv
        self._model = model
        self._shape = shape
        self._device = kv.tensor.device
        self._prompts: dict[int, Prompt] = {}
        self._swapped: dict[tuple[int, int], torch.Tensor] = {}

    def add(self, work_id: int, prompt: Prompt) -> None:
        """Learn of a request."""
        self._prompts[work_id] = prompt

    def forget(self, work_id: int) -> None:
        """A request is over."""
        self._prompts.pop(work_id, None)
        for key in [key for key in self._swapped if key[0] == work_id]:
            del self._swapped[key]

    def set_embedding(self, work_id: int, index: int, rows: torch.Tensor) -> bool:
        """Take an item's embedding; False where the request is gone."""
        prompt = self._prompts.get(work_id)
        if prompt is None:
            return False
        prompt.embeddings[index] = rows.to(self._device)
        return True

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[list[int], list[TokenLogprob | None]]:
        """Compute a step; a token and perhaps its logprobs per draw, in the step's order."""
        for sequence, blocks in step.swap_out:
            held = blocks[: -(-sequence.computed // self.kv.block_size)]
            self._swapped[sequence.order] = self.kv.save(held)
        for sequence, blocks in step.swap_in:
            self.kv.restore(blocks, self._swapped.pop(sequence.order))
        self.kv.copy(step.copies)
        if not step.chunks:
            return [], []
        chunks = sorted(step.chunks, key=lambda chunk: chunk.count > 1)
        hidden = self._forward(chunks)
        ends = np.cumsum([chunk.count for chunk in chunks]) - 1
        row_of: dict[int, int] = {}
        last: list[int] = []
        for chunk, end in zip(chunks, ends.tolist(), strict=True):
            if chunk.draws:
                row_of[id(chunk)] = len(last)
                last.append(end)
        draws = [
            self._draw(chunk.sequence, choice, row_of[id(chunk)])
            for chunk in step.chunks
            for choice in chunk.draws
        ]
        if not draws:
            return [], []
        logits = self._model.logits(hidden[torch.tensor(last, device=self._device)])
        return sample(logits, draws)

    def _draw(self, sequence: SequenceState, choice: int, row: int) -> Draw:
        prompt = self._prompts[sequence.work.id]
        work = sequence.work
        outputs = sequence.num_outputs
        penalised = prompt.params.penalised
        constraint = prompt.constraints.get(choice)
        looked_at = penalised or constraint is not None
        return Draw(
            row,
            prompt.params,
            prompt.seed,
            choice,
            outputs,
            sequence.tokens[: work.num_prompt] if penalised else (),
            sequence.tokens[work.num_prompt :] if looked_at else (),
            prompt.banned if outputs < work.stop.min_tokens else frozenset(),
            constraint,
        )

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        total = sum(chunk.count for chunk in chunks)
        ids = np.empty(total, dtype=np.int64)
        positions = np.empty((3, total), dtype=np.int64)
        rows: list[Int64Array] = []
        media: list[torch.Tensor] = []
        begin = 0
        for chunk in chunks:
            end = begin + chunk.count
            sequence = chunk.sequence
            prompt = self._prompts[sequence.work.id]
            if chunk.count == 1:
                ids[begin] = sequence.tokens[chunk.start]
            else:
                ids[begin:end] = sequence.tokens[chunk.start : chunk.start + chunk.count]
            _fill_positions(positions[:, begin:end], prompt, chunk.start)
            if prompt.placeholders and chunk.start < prompt.placeholders[-1].offset + (
                prompt.placeholders[-1].length
            ):
                _collect_media(prompt, chunk, begin, rows, media)
            begin = end
        embeds = self._model.embed(torch.from_numpy(ids).to(self._device))
        media_rows = None
        deepstack: Sequence[torch.Tensor] = ()
        if rows:
            media_rows = torch.from_numpy(np.concatenate(rows)).to(self._device)
            levels = torch.split(torch.cat(media), self._shape.hidden, dim=1)
            embeds[media_rows] = levels[0].to(embeds.dtype)
            deepstack = [level.to(embeds.dtype) for level in levels[1:]]
        layout = plan_layout(
            self.kv, [(chunk.sequence.blocks, chunk.start, chunk.count) for chunk in chunks]
        )
        return self._model.forward(
            embeds,
            torch.from_numpy(positions).to(self._device),
            media_rows,
            deepstack,
            layout,
        )


def _fill_positions(out: Int64Array, prompt: Prompt, start: int) -> None:
    """Positions of the tokens from index `start` on, into [3, count]."""
    count = out.shape[1]
    known = 0
    if prompt.positions is not None:
        known = max(0, min(count, prompt.positions.shape[1] - start))
        out[:, :known] = prompt.positions[:, start : start + known]
    if known < count:
        first = start + known + prompt.delta
        out[:, known:] = np.arange(first, first + count - known)


def _collect_media(
    prompt: Prompt, chunk: Chunk, begin: int, rows: list[Int64Array], media: list[torch.Tensor]
) -> None:
    """The rows of the step that a chunk's media fill, and what they are filled with."""
    end = chunk.start + chunk.count
    for placeholder, embedding in zip(prompt.placeholders, prompt.embeddings, strict=True):
        row = 0
        for run, length in placeholder.is_embed or ((0, placeholder.length),):
            first = placeholder.offset + run
            low, high = max(first, chunk.start), min(first + length, end)
            if low < high:
                if embedding is None:
                    raise RuntimeError("a step was planned before its embedding was there")
                shift = begin - chunk.start
                rows.append(np.arange(low + shift, high + shift, dtype=np.int64))
                media.append(embedding[row + low - first : row + high - first])
            row += length
