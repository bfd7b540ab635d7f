"""Which KV blocks are whose: reference counts, the prefix cache, least-recently-used eviction.

Pure bookkeeping; the bytes live in `kv_buffer`. A block is free (no reference), or held by one or
more sequences. A full block whose content is known by its hash stays findable while it is free,
until it is taken for something else, oldest first.

    free, unhashed ──allocate──▶ held ──register──▶ held + hashed
          ▲                        │ release              │ release
          └────────────────────────┘                      ▼
          ◀────────── allocate (evicts the hash) ── free + hashed ──share──▶ held + hashed
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence

BlockHash = bytes
"""16 bytes that name a block's tokens and everything before them."""


def root_hash(cache_salt: str) -> BlockHash:
    """What the chain of a prompt begins with; another salt shares nothing."""
    return hashlib.blake2b(b"kv\0" + cache_salt.encode(), digest_size=16).digest()


def block_hash(
    parent: BlockHash, tokens: Sequence[int], media: Iterable[tuple[str, int]]
) -> BlockHash:
    """The hash of a full block.

    Args:
        parent: the previous block's hash, or `root_hash`.
        tokens: the block's token ids.
        media: (mm_hash, offset of the item's first token from the block's) of each item that
            reaches into the block: equal placeholder tokens of different pictures differ here.
    """
    digest = hashlib.blake2b(parent, digest_size=16)
    digest.update(struct.pack(f"<{len(tokens)}q", *tokens))
    for mm_hash, offset in media:
        digest.update(struct.pack("<qq", offset, len(mm_hash)))
        digest.update(mm_hash.encode())
    return digest.digest()


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; nothing was taken."""


class BlockPool:
    """All KV blocks of a worker. Not thread-safe: the engine's thread owns it.

    Args:
        num_blocks: how many there are; their ids are 0 to `num_blocks` - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, BlockHash] = {}
        self._by_hash: dict[BlockHash, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each; forgets what they were cached as.

        Raises:
            OutOfBlocks: fewer are free.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            known = self._hash_of.pop(block, None)
            if known is not None:
                del self._by_hash[known]
            self._refs[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each, free cached ones included."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each. The end of a prefix is reused before its beginning."""
        for block in reversed(blocks):
            if self._refs[block] <= 0:
                raise ValueError(f"block {block} is not held")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def is_shared(self, block: int) -> bool:
        """Whether a writer must copy it first."""
        return self._refs[block] > 1

    def register(self, block: int, content: BlockHash) -> None:
        """Make a full, held block findable. An equal one that is findable already stays so."""
        if content not in self._by_hash and block not in self._hash_of:
            self._by_hash[content] = block
            self._hash_of[block] = content

    def match(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest known prefix of the chain; takes no reference."""
        found = []
        for content in hashes:
            block = self._by_hash.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of them sharing would take from the free ones."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def check(self) -> None:
        """Assert the invariants; tests and the idle engine call it.

        Raises:
            ValueError: one is broken.
        """
        free = {block for block, refs in enumerate(self._refs) if refs == 0}
        if free != set(self._free):
            raise ValueError("free list and reference counts disagree")
        if {self._by_hash[h]: h for h in self._by_hash} != self._hash_of:
            raise ValueError("hash tables disagree")
