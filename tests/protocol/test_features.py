"""`features`: every rule of wire-protocol §2.3 with its message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.transfer import EcItem


def features(**columns: Any) -> MultiModalFeatures:
    """Features as they come from JSON."""
    raw = {
        "mm_hashes": {"image": ["a", "b"]},
        "mm_placeholders": {
            "image": [{"offset": 0, "length": 2}, {"offset": 5, "length": 3}],
        },
        **columns,
    }
    return msgspec.json.decode(msgspec.json.encode(raw), type=MultiModalFeatures)


def test_columns_are_read_and_optional() -> None:
    read = features(kwargs_data={"image": ["QQ==", None]})
    assert read.kwargs_data == {"image": ["QQ==", None]}
    assert read.mm_metadata is None
    assert read.end == 8


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"mm_placeholders": {}},
            "mm_hashes and mm_placeholders must use the same modalities",
        ),
        (
            {"mm_placeholders": {"video": []}},
            "mm_hashes and mm_placeholders must use the same modalities",
        ),
        ({"kwargs_data": {}}, "kwargs_data must use the same modalities as mm_hashes"),
        (
            {"mm_metadata": {"image": [None, None], "video": []}},
            "mm_metadata must use the same modalities as mm_hashes",
        ),
        (
            {"kwargs_handles": {"video": [None, None]}},
            "kwargs_handles must use the same modalities as mm_hashes",
        ),
        (
            {"mm_hashes": {"image": ["a"]}},
            "image mm_hashes and mm_placeholders must have the same length",
        ),
        (
            {"kwargs_data": {"image": [None]}},
            "image kwargs_data and mm_hashes must have the same length",
        ),
        (
            {"mm_metadata": {"image": [None, None, None]}},
            "image mm_metadata and mm_hashes must have the same length",
        ),
        (
            {"kwargs_handles": {"image": []}},
            "image kwargs_handles and mm_hashes must have the same length",
        ),
        (
            {
                "mm_placeholders": {
                    "image": [{"offset": 0, "length": 2}, {"offset": 1, "length": 3}]
                }
            },
            "mm_placeholders must be globally non-overlapping and sorted",
        ),
        (
            {
                "mm_hashes": {"image": ["a"], "video": ["b"]},
                "mm_placeholders": {
                    "image": [{"offset": 4, "length": 2}],
                    "video": [{"offset": 0, "length": 5}],
                },
            },
            "mm_placeholders must be globally non-overlapping and sorted",
        ),
        (
            {
                "mm_placeholders": {
                    "image": [{"offset": -1, "length": 1}, {"offset": 5, "length": 3}]
                }
            },
            "offset must not be negative",
        ),
        (
            {
                "mm_placeholders": {
                    "image": [{"offset": 0, "length": 0}, {"offset": 5, "length": 3}]
                }
            },
            "length must be positive",
        ),
    ],
)
def test_each_rule_is_refused_with_its_message(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        features(**columns)
    assert str(caught.value).startswith(message)


def test_unsorted_and_adjacent_ranges_are_accepted() -> None:
    read = features(
        mm_placeholders={"image": [{"offset": 5, "length": 3}, {"offset": 2, "length": 3}]}
    )
    assert [item.mm_hash for item in read.items()] == ["b", "a"]


def test_items_come_in_prompt_order_over_all_modalities() -> None:
    read = features(
        mm_hashes={"image": ["i0", "i1"], "video": ["v0"]},
        mm_placeholders={
            "image": [{"offset": 9, "length": 1}, {"offset": 0, "length": 1}],
            "video": [{"offset": 4, "length": 2}],
        },
        kwargs_data={"image": ["K0", None], "video": [None]},
        mm_metadata={"image": [None, "M1"], "video": ["MV"]},
    )
    assert [
        (ref.modality, ref.index, ref.mm_hash, ref.kwargs, ref.metadata) for ref in read.items()
    ] == [
        ("image", 1, "i1", None, "M1"),
        ("video", 0, "v0", None, "MV"),
        ("image", 0, "i0", "K0", None),
    ]


def test_without_kwargs_keeps_metadata_only() -> None:
    read = features(
        kwargs_data={"image": ["K0", "K1"]},
        mm_metadata={"image": ["M0", None]},
        kwargs_handles={"image": [{"mm_hash": "a", "peer_host": "h"}, None]},
    ).without_kwargs()
    assert read.kwargs_data is None
    assert read.kwargs_handles is None
    assert read.mm_metadata == {"image": ["M0", None]}


def test_handles_are_read_as_descriptors() -> None:
    read = features(kwargs_handles={"image": [{"mm_hash": "a", "peer_host": "h"}, None]})
    assert read.items()[0].handle == EcItem("a", "h")


@pytest.mark.parametrize(
    "runs", [[[0, 0]], [[0, 5]], [[2, 1], [0, 1]], [[0, 2], [1, 1]], [[3, 2]], [[-1, 1]]]
)
def test_embedding_masks_outside_their_placeholder_are_refused(runs: list[list[int]]) -> None:
    with pytest.raises(msgspec.ValidationError, match="is_embed must be sorted runs"):
        msgspec.convert({"offset": 0, "length": 4, "is_embed": runs}, PlaceholderRange)


def test_rows_are_the_masked_tokens() -> None:
    assert PlaceholderRange(3, 10).rows == 10
    assert PlaceholderRange(3, 10, ((0, 2), (5, 3))).rows == 5


@given(
    st.lists(st.tuples(st.integers(-2, 30), st.integers(-1, 8)), max_size=6),
)
def test_ranges_are_accepted_exactly_when_positive_and_disjoint(
    ranges: list[tuple[int, int]],
) -> None:
    tokens = [index for offset, length in ranges for index in range(offset, offset + length)]
    valid = all(offset >= 0 and length > 0 for offset, length in ranges) and len(tokens) == len(
        set(tokens)
    )
    raw = {
        "mm_hashes": {"image": [str(i) for i in range(len(ranges))]},
        "mm_placeholders": {"image": [{"offset": o, "length": n} for o, n in ranges]},
    }
    try:
        msgspec.convert(raw, MultiModalFeatures)
    except msgspec.ValidationError:
        assert not valid
    else:
        assert valid
