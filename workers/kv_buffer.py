"""The bytes of the paged KV cache.

One contiguous tensor [blocks, layers, block_size, 2, kv_heads, head_dim]: a block of all layers
is one span of memory, so that a request's blocks are handed to another replica in as few pieces
as possible, and a group of layers of a block is one piece too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.adapters.base import ModelShape


class KvBuffer:
    """The keys and values of every block.

    Args:
        shape: the model's sizes.
        num_blocks, block_size: how many blocks of how many tokens.
        dtype, device: of keys and values.
        memory: uint8 host memory to use instead of memory of its own.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: torch.Tensor | None = None,
    ) -> None:
        self._shape = shape
        self.block_size = block_size
        self.num_blocks = num_blocks
        sizes = (num_blocks, shape.layers, block_size, 2, shape.kv_heads, shape.head_dim)
        if memory is None:
            self.tensor = torch.zeros(sizes, dtype=dtype, device=device)
        else:
            self.tensor = memory.view(dtype).view(sizes)
        self.layers = [self.tensor[:, layer] for layer in range(shape.layers)]
        self.block_nbytes = self.tensor[0].nbytes

    def over(self, memory: torch.Tensor) -> KvBuffer:
        """A buffer of the same blocks over other memory, as many as fit."""
        count = memory.nbytes // self.block_nbytes
        return KvBuffer(
            self._shape, count, self.block_size, self.tensor.dtype, memory.device, memory
        )

    @staticmethod
    def nbytes_per_block(shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block of all layers."""
        return shape.layers * block_size * 2 * shape.kv_heads * shape.head_dim * dtype.itemsize

    def spans(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """(offset, nbytes) of the blocks in the buffer, in order, neighbours joined."""
        spans: list[tuple[int, int]] = []
        for block in blocks:
            offset = block * self.block_nbytes
            if spans and sum(spans[-1]) == offset:
                spans[-1] = (spans[-1][0], spans[-1][1] + self.block_nbytes)
            else:
                spans.append((offset, self.block_nbytes))
        return spans

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, from first to second of each pair; all are read before any write."""
        if pairs:
            sources, targets = zip(*pairs, strict=True)
            self.tensor[self._index(targets)] = self.tensor[self._index(sources)]

    def save(self, blocks: Sequence[int]) -> torch.Tensor:
        """A copy of the blocks in host memory."""
        return self.tensor[self._index(blocks)].to("cpu")

    def restore(self, blocks: Sequence[int], saved: torch.Tensor) -> None:
        """Put back what `save` gave into other blocks."""
        self.tensor[self._index(blocks)] = saved.to(self.tensor.device)

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)
