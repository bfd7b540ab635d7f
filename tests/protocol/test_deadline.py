"""One absolute deadline: a stage's limit never outlives the request's."""

from __future__ import annotations

import pytest

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded


def test_a_hop_takes_what_remains() -> None:
    assert 9 < Deadline.after(10).remaining() <= 10


def test_a_passed_deadline_names_the_stage() -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        Deadline.after(-1).remaining("prefill")
    assert caught.value.stage == "prefill"


def test_a_stages_limit_is_inside_the_total() -> None:
    total = Deadline.after(10)
    assert total.within(60).at == total.at
    assert total.within(1).at < total.at
