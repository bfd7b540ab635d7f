"""No token twice, none lost, over several tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.progress import Progress
from protocol.errors import InternalError
from protocol.generate import Logprobs, TokenLogprob
from protocol.rpc import TokenDelta


def test_one_choice_is_resumed_after_its_tokens() -> None:
    progress = Progress(1)
    assert progress.begin() == []
    assert progress.take(TokenDelta(0, [1, 2])) == TokenDelta(0, [1, 2])
    assert progress.begin() == [1, 2]
    assert progress.take(TokenDelta(0, [3], None, "stop")) == TokenDelta(0, [3], None, "stop")
    assert not progress.open


def test_a_replayed_choice_that_differs_is_an_error() -> None:
    progress = Progress(2)
    progress.begin()
    progress.take(TokenDelta(0, [1, 2]))
    progress.begin()
    with pytest.raises(InternalError):
        progress.take(TokenDelta(0, [1, 3]))


def test_an_unknown_choice_is_an_error() -> None:
    with pytest.raises(InternalError):
        Progress(1).take(TokenDelta(1, [1]))


def test_nothing_is_taken_of_a_choice_that_has_ended() -> None:
    progress = Progress(2)
    progress.take(TokenDelta(0, [1], None, "stop"))
    assert progress.take(TokenDelta(0, [2])) is None


@given(
    sequences=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=2, max_size=3
    ),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    step=st.integers(1, 4),
)
def test_replays_give_each_token_once(
    sequences: list[list[int]], cuts: list[int], step: int
) -> None:
    progress = Progress(len(sequences))
    given_out: list[list[int]] = [[] for _ in sequences]
    ended: list[str | None] = [None] * len(sequences)
    for cut in [*cuts, 10_000]:
        progress.begin()
        sent = 0
        for index, tokens in enumerate(sequences):
            for at in range(0, len(tokens), step):
                if sent >= cut:
                    break
                sent += 1
                part = tokens[at : at + step]
                last = "stop" if at + step >= len(tokens) else None
                logprobs = Logprobs([TokenLogprob(token, -1.0) for token in part])
                fresh = progress.take(TokenDelta(index, part, logprobs, last))  # type: ignore[arg-type]
                if fresh is not None:
                    given_out[index] += fresh.token_ids
                    assert fresh.logprobs is not None
                    assert [e.token_id for e in fresh.logprobs.content] == fresh.token_ids
                    if fresh.finish_reason:
                        assert ended[index] is None
                        ended[index] = fresh.finish_reason
    assert given_out == sequences
    assert all(ended)
