"""Descriptors: both forms of `ec_transfer_params`, and the KV hand-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.transfer import (
    EcItem,
    KvHandoff,
    ec_params,
    kv_params,
    parse_ec_params,
    parse_kv_handoff,
)

OURS = EcItem(
    "abc", "10.0.0.1", 6001, "k/1", "e1", (35, 256), "float32", 35840, ("shm", "tcp"), 12.5, "ff"
)


def test_the_documented_form_is_emitted() -> None:
    assert ec_params([OURS]) == {
        "ec_items": [
            {
                "mm_hash": "abc",
                "peer_host": "10.0.0.1",
                "peer_port": 6001,
                "key": "k/1",
                "epoch": "e1",
                "shape": (35, 256),
                "dtype": "float32",
                "nbytes": 35840,
                "transports": ("shm", "tcp"),
                "expires_at": 12.5,
                "mac": "ff",
            }
        ]
    }


def test_our_form_is_read_back() -> None:
    parsed = parse_ec_params(ec_params([OURS]))
    assert (parsed.items, parsed.foreign) == ({"abc": OURS}, {})


def test_the_documents_minimal_form_is_read() -> None:
    parsed = parse_ec_params({"ec_items": [{"mm_hash": "abc123", "peer_host": "10.0.0.1"}]})
    assert parsed.items == {"abc123": EcItem("abc123", "10.0.0.1", 5601)}


def test_a_map_keyed_by_hash_is_kept_untouched() -> None:
    foreign = {"eb94": {"item_indices": [0], "metadata": {"image_grid_thw": [1, 10, 14]}}}
    parsed = parse_ec_params(foreign)
    assert (parsed.items, parsed.foreign) == ({}, foreign)


def test_both_forms_may_stand_together() -> None:
    parsed = parse_ec_params(ec_params([OURS]) | {"eb94": {"metadata": {}}})
    assert parsed.items == {"abc": OURS}
    assert parsed.foreign == {"eb94": {"metadata": {}}}


@pytest.mark.parametrize(
    "listed",
    [
        None,
        {},
        "abc",
        [1],
        [{"mm_hash": "a"}],
        [{"peer_host": "h"}],
        [{"mm_hash": "a", "peer_host": "h", "peer_port": "x"}],
        [{"mm_hash": "a", "peer_host": "h", "shape": "x"}],
    ],
)
def test_malformed_items_are_refused(listed: object) -> None:
    with pytest.raises(ValueError, match="ec_items"):
        parse_ec_params({"ec_items": listed})


@given(
    st.dictionaries(
        st.sampled_from(["ec_items", "a", "b"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["mm_hash", "peer_host", "peer_port", "x"]), inner, max_size=3
                )
            ),
        ),
    )
)
def test_any_params_are_parsed_or_refused(params: dict[str, object]) -> None:
    try:
        parsed = parse_ec_params(params)
    except ValueError:
        return
    assert parsed.foreign == {name: value for name, value in params.items() if name != "ec_items"}


def test_the_handoff_survives_json() -> None:
    handoff = KvHandoff(OURS, 59, 16, (210,))
    assert parse_kv_handoff(kv_params(handoff)) == handoff


def test_foreign_kv_params_are_not_ours() -> None:
    assert parse_kv_handoff({"do_remote_decode": True}) is None


@pytest.mark.parametrize("value", [None, {}, {"source": {}}, [], "x"])
def test_a_malformed_handoff_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="triptych_kv"):
        parse_kv_handoff({"triptych_kv": value})
