"""Attention over the paged KV cache, for transformers' attention interface.

A step is one flat row of tokens: first one token of each decoding sequence, then the chunks of
prompts. Every sequence sees its own keys alone: decoding ones side by side, padded to the longest
and masked; chunks one by one. So an answer does not depend on what else is in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.kv_buffer import KvBuffer

NAME = "triptych_paged"
"""The attention implementation's name in a transformers configuration."""


@dataclass(slots=True)
class ChunkLayout:
    """Where a prompt chunk's queries and keys are: tokens [begin, begin + count) of the step."""

    begin: int
    count: int
    kv_length: int
    blocks: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class StepLayout:
    """Everything that attention needs to know of a step.

    Attributes:
        kv: the cache.
        block, offset: [tokens] where the new keys and values go.
        num_decodes: the first tokens of the step, one per decoding sequence.
        decode_blocks: [num_decodes * width] block tables, padded.
        decode_mask: [num_decodes, 1, 1, width * block_size], True where there is a key; None
            where all are full.
        chunks: the prompt chunks.
    """

    kv: KvBuffer
    block: torch.Tensor
    offset: torch.Tensor
    num_decodes: int
    decode_blocks: torch.Tensor | None
    decode_mask: torch.Tensor | None
    chunks: list[ChunkLayout]


def plan_layout(kv: KvBuffer, sequences: Sequence[tuple[list[int], int, int]]) -> StepLayout:
    """The layout of a step.

    Args:
        kv: the cache.
        sequences: (block table, first token's position, number of tokens); those with one token
            come first.
    """
    size = kv.block_size
    device = kv.tensor.device
    slots = np.concatenate(
        [
            np.arange(start, start + count, dtype=np.int64)
            if count > 1
            else np.array([start], dtype=np.int64)
            for _, start, count in sequences
        ]
    )
    owner = np.repeat(
        np.arange(len(sequences)), np.array([count for _, _, count in sequences], dtype=np.int64)
    )
    width = max(len(blocks) for blocks, _, _ in sequences)
    table = np.zeros((len(sequences), width), dtype=np.int64)
    for row, (blocks, _, _) in enumerate(sequences):
        table[row, : len(blocks)] = blocks
    block = table[owner, slots // size]
    decodes = sum(1 for _, _, count in sequences if count == 1)
    decode_blocks = decode_mask = None
    if decodes:
        lengths = np.array([start + 1 for _, start, _ in sequences[:decodes]])
        used = -(-int(lengths.max()) // size)
        decode_blocks = _to(table[:decodes, :used].reshape(-1), device)
        within = np.arange(used * size) < lengths[:, None]
        decode_mask = _to(within[:, None, None, :], device)
    chunks = []
    begin = decodes
    for row in range(decodes, len(sequences)):
        _, start, count = sequences[row]
        length = start + count
        mask = None
        if start:
            mask = _to(np.arange(length) <= np.arange(start, length)[:, None], device)
        blocks_used = table[row, : -(-length // size)]
        chunks.append(ChunkLayout(begin, count, length, _to(blocks_used, device), mask))
        begin += count
    return StepLayout(
        kv,
        _to(block, device),
        _to(slots % size, device),
        decodes,
        decode_blocks,
        decode_mask,
        chunks,
    )


def _to(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    layout: StepLayout | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend.

    Args:
        module: the attention module; `layer_idx` says which layer's cache it is.
        query: [1, heads, tokens, head_dim].
        key, value: [1, kv_heads, tokens, head_dim].
        attention_mask: unused; the layout says who sees what.
        scaling: of the scores.
        layout: the step.

    Returns:
        [1, tokens, heads, head_dim] and None.
    """
    if layout is None:
        raise ValueError("paged attention needs the step's layout")
    cache = layout.kv.layers[int(module.layer_idx)]  # type: ignore[arg-type]
    kv_heads, dim = key.shape[1], key.shape[3]
    new = torch.stack((key[0], value[0]), dim=1)  # [kv_heads, 2, tokens, head_dim]
    cache[layout.block, layout.offset] = new.permute(2, 1, 0, 3)
    queries = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    count = layout.num_decodes
    if count and layout.decode_blocks is not None:
        held = cache.index_select(0, layout.decode_blocks).view(count, -1, 2, kv_heads, dim)
        keys, values = held.permute(2, 0, 3, 1, 4)  # [sequences, kv_heads, length, head_dim]
        # The heads that share keys stand as if they were queries of one head.
        grouped = queries[:count].reshape(count, kv_heads, -1, dim)
        attended = scaled_dot_product_attention(
            grouped, keys, values, attn_mask=layout.decode_mask, scale=scaling
        )
        out[:count] = attended.reshape(count, -1, dim)
    for chunk in layout.chunks:
        held = cache.index_select(0, chunk.blocks).view(-1, 2, kv_heads, dim)[: chunk.kv_length]
        if query.shape[1] != kv_heads:  # the fused kernels with a mask know no grouped heads
            held = held.repeat_interleave(query.shape[1] // kv_heads, dim=2)
        keys, values = held.permute(1, 2, 0, 3)  # [heads, length, head_dim]
        end = chunk.begin + chunk.count
        attended = scaled_dot_product_attention(
            query[:, :, chunk.begin : end],
            keys[None],
            values[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scaling,
        )
        out[chunk.begin : end] = attended[0].transpose(0, 1)
    return out[None], None


AttentionInterface.register(NAME, paged_attention)
