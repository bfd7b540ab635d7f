"""Truncation and the expansion of placeholders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.features import PlaceholderRange
from render.families.base import Placeholder, Run
from render.prompt import expand, joined, kept

PLACEHOLDERS = {"image": Placeholder(90, "<i>"), "video": Placeholder(91, "<v>")}


def test_each_placeholder_takes_the_tokens_of_its_item() -> None:
    items = {"image": [(Run(90, 3),), (Run(90, 1),)]}
    out = expand([1, 90, 2, 90, 3], PLACEHOLDERS, items)
    assert out.token_ids == [1, 90, 90, 90, 2, 90, 3]
    assert out.ranges == {"image": [PlaceholderRange(1, 3), PlaceholderRange(5, 1)]}


def test_modalities_are_counted_apart() -> None:
    items = {"video": [(Run(91, 2),)], "image": [(Run(90, 1),)]}
    out = expand([90, 91], PLACEHOLDERS, items)
    assert out.token_ids == [90, 91, 91]
    assert out.ranges == {"video": [PlaceholderRange(1, 2)], "image": [PlaceholderRange(0, 1)]}


def test_interleaved_tokens_are_masked() -> None:
    runs = (Run(7, 1, False), Run(90, 2), Run(90, 1), Run(8, 1, False), Run(90, 2))
    out = expand([90], PLACEHOLDERS, {"image": [runs]})
    assert out.token_ids == [7, 90, 90, 90, 8, 90, 90]
    found = out.ranges["image"][0]
    assert found.is_embed == ((1, 3), (5, 2))
    assert found.rows == 5


@pytest.mark.parametrize("ids", [[1], [90, 90]])
def test_a_placeholder_too_few_or_many_is_an_error(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="exactly one placeholder"):
        expand(ids, PLACEHOLDERS, {"image": [(Run(90, 2),)]})


@given(
    text=st.lists(st.integers(0, 50), max_size=8),
    sizes=st.lists(st.integers(1, 5), max_size=4),
)
def test_ranges_point_at_the_items_tokens(text: list[int], sizes: list[int]) -> None:
    ids = [token for size in sizes for token in [*text, 90]] + text
    out = expand(ids, PLACEHOLDERS, {"image": [(Run(90, size),) for size in sizes]})
    assert [r.length for r in out.ranges["image"]] == sizes
    for found in out.ranges["image"]:
        assert out.token_ids[found.offset : found.offset + found.length] == [90] * found.length
    assert len(out.token_ids) == len(ids) - len(sizes) + sum(sizes)


def test_truncation_keeps_the_end_or_the_beginning() -> None:
    ids = [1, 2, 3]
    assert ids[kept(ids, 2, "left", PLACEHOLDERS)] == [2, 3]
    assert ids[kept(ids, 2, "right", PLACEHOLDERS)] == [1, 2]
    assert ids[kept(ids, 3, "left", PLACEHOLDERS)] == ids


def test_truncation_never_cuts_an_item_off() -> None:
    with pytest.raises(InvalidRequest) as caught:
        kept([90, 2, 3], 2, "left", PLACEHOLDERS)
    assert caught.value.param == "truncate_prompt_tokens"


ONE, TWO, THREE, FOUR, PICTURE = 91, 92, 93, 94, 95
NEWLINES = ((ONE, TWO, THREE), (TWO, ONE, THREE), (TWO, TWO, FOUR))
FRAMED = (Run(TWO, 1, False), Run(PICTURE, 3), Run(TWO, 1, False))


def test_an_items_newlines_join_those_of_the_text() -> None:
    expanded = expand([1, ONE, 5, ONE, 2], {"image": Placeholder(5, "")}, {"image": [FRAMED]})
    found = joined(expanded, NEWLINES)
    assert found.token_ids == [1, THREE, PICTURE, PICTURE, PICTURE, THREE, 2]
    assert found.ranges == {"image": [PlaceholderRange(1, 5, ((1, 3),))]}


def test_a_newline_that_two_items_share_belongs_to_the_first() -> None:
    expanded = expand([5, 5, 2], {"image": Placeholder(5, "")}, {"image": [FRAMED, FRAMED]})
    found = joined(expanded, NEWLINES)
    assert found.token_ids == [TWO, *[PICTURE] * 3, FOUR, *[PICTURE] * 3, TWO, 2]
    first, second = found.ranges["image"]
    assert first == PlaceholderRange(0, 5, ((1, 3),))
    assert second == PlaceholderRange(5, 4, ((0, 3),))


def test_without_joins_a_prompt_stays_as_it_is() -> None:
    expanded = expand([5, 1], {"image": Placeholder(5, "")}, {"image": [FRAMED]})
    assert joined(expanded, ()) is expanded
