"""Tokens from logits: what each parameter does, and that draws repeat."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sampling import SamplingParams
from workers.sampler import Draw, sample, uniform

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0, 0.0]])


def draw(row: int = 0, *, seed: int = 0, step: int = 0, choice: int = 0, **fields: Any) -> Draw:
    own = {k: fields.pop(k) for k in ("prompt", "outputs", "banned") if k in fields}
    defaults: dict[str, Any] = {"prompt": (), "outputs": ()}
    return Draw(row, SamplingParams(**fields), seed, choice, step, **(defaults | own))


def drawn(logits: torch.Tensor = LOGITS, count: int = 400, **fields: Any) -> Counter[int]:
    tokens, _ = sample(logits, [draw(step=step, **fields) for step in range(count)])
    return Counter(tokens)


def test_greedy_takes_the_likeliest() -> None:
    assert sample(LOGITS, [draw(temperature=0.0)])[0] == [1]


def test_draws_follow_the_probabilities() -> None:
    counts = drawn(count=4000)
    for token, probability in enumerate(LOGITS[0].softmax(-1).tolist()):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize(
    ("fields", "possible"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": -1}, {0, 1, 2, 3, 4}),
        ({"top_k": 2**62}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.8}, {1, 2}),
        ({"min_p": 0.3}, {1, 2}),
        ({"top_k": 3, "top_p": 0.99, "min_p": 0.2}, {1, 2}),
        ({"temperature": 0.01}, {1}),
    ],
)
def test_filters_leave_only_what_they_should(fields: dict[str, Any], possible: set[int]) -> None:
    counts = drawn(**fields)
    assert set(counts) <= possible
    if len(possible) < 5:
        assert set(counts) == possible


def test_a_draw_depends_on_seed_choice_and_step_alone() -> None:
    one = [draw(seed=4, step=step, choice=step % 2) for step in range(50)]
    together, _ = sample(LOGITS, one)
    alone = [sample(LOGITS, [each])[0][0] for each in one]
    others = [draw(seed=5, step=step, choice=step % 2) for step in range(50)]
    assert together == alone
    assert together != sample(LOGITS, others)[0]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9), st.integers(0, 10**6))
def test_the_random_number_is_in_range_for_every_key(seed: int, choice: int, step: int) -> None:
    assert 0 <= uniform(seed, choice, step) < 1
    assert uniform(seed, choice, step) == uniform(seed, choice, step)


def test_the_random_numbers_are_spread_evenly() -> None:
    values = [uniform(1, 0, step) for step in range(2000)]
    assert sum(values) / 2000 == pytest.approx(0.5, abs=0.03)
    assert Counter(int(v * 10) for v in values).most_common()[-1][1] > 140


def test_repetition_penalty_looks_at_prompt_and_outputs() -> None:
    for where in ("prompt", "outputs"):
        fields: dict[str, Any] = {where: [1]}
        assert sample(LOGITS, [draw(temperature=0.0, repetition_penalty=2.0, **fields)])[0] == [2]
    negative = torch.tensor([[-1.0, -1.5]])
    penalised = draw(temperature=0.0, repetition_penalty=2.0, prompt=[0])
    assert sample(negative, [penalised])[0] == [1]


def test_presence_and_frequency_penalties_look_at_outputs_alone() -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        fields: dict[str, Any] = {name: 1.5, "temperature": 0.0}
        assert sample(LOGITS, [draw(prompt=[1, 1], **fields)])[0] == [1]
        assert sample(LOGITS, [draw(outputs=[1], **fields)])[0] == [2]
    logits = torch.tensor([[2.0, 1.0]])
    once = draw(temperature=0.0, frequency_penalty=0.6, outputs=[0])
    twice = draw(temperature=0.0, frequency_penalty=0.6, outputs=[0, 0])
    assert sample(logits, [once, twice])[0] == [0, 1]


def test_banned_tokens_are_not_drawn() -> None:
    assert sample(LOGITS, [draw(temperature=0.0, banned=frozenset({1, 2}))])[0] == [0]


def test_penalties_of_one_row_leave_the_others_alone() -> None:
    logits = LOGITS.repeat(2, 1)
    tokens, _ = sample(
        logits,
        [
            draw(0, temperature=0.0, repetition_penalty=2.0, prompt=[1]),
            draw(1, temperature=0.0),
        ],
    )
    assert tokens == [2, 1]


def test_logprobs_are_of_the_raw_logits_with_the_sampled_token_first() -> None:
    raw = LOGITS[0].log_softmax(-1)
    _, entries = sample(LOGITS, [draw(temperature=0.0, banned=frozenset({1}), logprobs=2)])
    entry = entries[0]
    assert entry is not None
    assert (entry.token_id, entry.rank) == (2, 2)
    assert entry.logprob == pytest.approx(float(raw[2]))
    assert [(top.token_id, top.rank) for top in entry.top_logprobs] == [(2, 2), (1, 1)]


@pytest.mark.parametrize(("count", "length"), [(0, 1), (1, 1), (3, 3), (5, 5), (-1, 5)])
def test_the_number_of_alternatives(count: int, length: int) -> None:
    _, entries = sample(LOGITS, [draw(temperature=0.0, logprobs=count)])
    assert entries[0] is not None
    assert len(entries[0].top_logprobs) == length


def test_an_impossible_token_is_written_as_the_contract_has_it() -> None:
    logits = torch.tensor([[0.0, -math.inf]])
    _, entries = sample(logits, [draw(temperature=0.0, logprobs=2)])
    assert entries[0] is not None
    assert entries[0].top_logprobs[1].logprob == -9999.0


def test_nobody_asked_for_logprobs_nobody_gets_them() -> None:
    _, entries = sample(LOGITS, [draw(), draw(logprobs=0)])
    assert entries[0] is None
    assert entries[1] is not None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12),
    st.floats(0, 2),
    st.floats(0.01, 1),
    st.integers(-1, 15),
    st.floats(0, 1),
    st.integers(0, 100),
)
def test_every_combination_gives_a_token_that_may_be(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    params = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    tokens, _ = sample(torch.tensor([values]), [draw(seed=seed, **params)])
    assert 0 <= tokens[0] < len(values)
    if top_k > 0 or temperature == 0:
        limit = 1 if temperature == 0 else top_k
        assert sum(v > values[tokens[0]] for v in values) < limit


def test_each_draw_takes_its_own_row_in_whatever_order_they_come() -> None:
    logits = torch.eye(4)[[2, 0, 3, 1]]
    rows = [3, 1, 0, 2]
    greedy = [draw(row, temperature=0.0) for row in rows]
    chosen, _ = sample(logits, greedy)
    assert chosen == [int(logits[row].argmax()) for row in rows]
