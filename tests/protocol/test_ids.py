"""Request ids: what we make is what we accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import is_valid_id, new_id


def test_new_ids_are_valid_and_unlike() -> None:
    ids = {new_id("chatcmpl-") for _ in range(100)}
    assert len(ids) == 100
    assert all(is_valid_id(value) for value in ids)


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "ä", "x" * 257, "a\0"])
def test_ids_that_could_break_a_log_line_or_a_header_are_refused(value: str) -> None:
    assert not is_valid_id(value)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256))
def test_printable_ascii_is_accepted(value: str) -> None:
    assert is_valid_id(value)
