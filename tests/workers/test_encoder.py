"""Which items are encoded at once."""

from __future__ import annotations

import pytest

from workers.encoder import batch_size


@pytest.mark.parametrize(
    ("costs", "expected"),
    [([], 0), ([50], 1), ([4, 4, 4], 2), ([4, 6], 2), ([4, 7], 1), ([50, 1], 1), ([1] * 20, 10)],
    ids=["none", "too large runs alone", "fits two", "exactly", "not quite", "alone", "many"],
)
def test_a_batch_fills_the_budget_and_has_at_least_one(costs: list[int], expected: int) -> None:
    assert batch_size(costs, 10) == expected
