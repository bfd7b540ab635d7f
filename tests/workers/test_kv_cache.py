"""Block bookkeeping: nothing is lost, shared or reused that should not be."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.kv_cache import BlockPool, OutOfBlocks, block_hash, root_hash


def test_taking_more_than_is_free_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.num_free == 1


def test_a_released_full_block_is_found_again_until_it_is_needed() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    content = block_hash(root_hash(""), [1, 2], [])
    pool.register(blocks[0], content)
    pool.release(blocks)
    assert pool.match([content]) == [blocks[0]]
    assert pool.allocate(1) == [blocks[1]], "blocks that nobody can find go first"
    pool.allocate(1)
    assert pool.match([content]) == []


def test_of_a_released_prefix_the_end_is_reused_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    parent = root_hash("")
    for block in blocks:
        parent = block_hash(parent, [block], [])
        pool.register(block, parent)
    pool.release(blocks)
    assert pool.allocate(3) == list(reversed(blocks))


def test_a_block_can_be_shared_and_is_free_after_the_last_release() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.share(blocks)
    assert pool.is_shared(blocks[0])
    pool.release(blocks)
    assert not pool.is_shared(blocks[0])
    assert pool.num_free == 0
    pool.release(blocks)
    assert pool.num_free == 1


def test_releasing_a_free_block_is_refused() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="not held"):
        pool.release([0])


def test_the_first_of_two_equal_blocks_stays_the_one_that_is_found() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    content = block_hash(root_hash(""), [1], [])
    pool.register(first, content)
    pool.register(second, content)
    assert pool.match([content]) == [first]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((root_hash("a"), [1], []), (root_hash("b"), [1], [])),
        ((root_hash(""), [1], []), (root_hash(""), [2], [])),
        ((root_hash(""), [9, 9], [("x", 0)]), (root_hash(""), [9, 9], [("y", 0)])),
        ((root_hash(""), [9, 9], [("x", 0)]), (root_hash(""), [9, 9], [("x", 1)])),
        ((root_hash(""), [9, 9], [("x", -4)]), (root_hash(""), [9, 9], [])),
    ],
    ids=["salt", "tokens", "picture", "place of the picture", "picture or none"],
)
def test_what_differs_in_meaning_differs_in_hash(
    one: tuple[bytes, list[int], list[tuple[str, int]]],
    other: tuple[bytes, list[int], list[tuple[str, int]]],
) -> None:
    assert block_hash(*one) != block_hash(*other)


class Pool(RuleBasedStateMachine):
    """Holders take, share, register and release blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.holders: list[list[int]] = []
        self.counter = 0

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        taken = self.pool.allocate(count)
        assert not {block for blocks in self.holders for block in blocks} & set(taken)
        self.holders.append(taken)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        self.pool.share(blocks)
        self.holders.append(list(blocks))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        self.counter += 1
        content = block_hash(root_hash(""), [self.counter], [])
        self.pool.register(blocks[0], content)
        found = self.pool.match([content])
        assert found in ([], [blocks[0]])
        if found:
            self.pool.share(found)
            self.holders.append(found)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        held = {block for blocks in self.holders for block in blocks}
        assert self.pool.num_used == len(held)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
