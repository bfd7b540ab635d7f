"""The scheduler, without a model: a pretend cache remembers which token each slot holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.kv_cache import BlockPool
from workers.scheduler import Scheduler
from workers.step import (
    BlocksReady,
    Event,
    MediaMissing,
    PrefillDone,
    Step,
    TokenSampled,
    WorkDone,
)
from workers.work import MediaSpan, SequenceState, StopRules, Work

SIZE = 4


class Bench:
    """A scheduler and a cache whose every slot says which (position, token, salt) it holds."""

    def __init__(self, blocks: int = 16, seqs: int = 8, tokens: int = 32, caching: bool = True):
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(self.pool, SIZE, seqs, tokens, prefix_caching=caching)
        self.slots: dict[int, list[object]] = {b: [None] * SIZE for b in range(blocks)}
        self.saved: dict[tuple[int, int], list[list[object]]] = {}
        self.outputs: dict[tuple[int, int], list[int]] = {}
        self.events: list[Event] = []
        self.budget = tokens
        self.steps: list[Step] = []

    def add(self, work: Work) -> Work:
        self.scheduler.add(work)
        return work

    def step(self) -> list[Event]:
        """Schedule, compute, complete; checks that every key a token sees is the right one."""
        step, events = self.scheduler.schedule()
        self.steps.append(step)
        self.compute(step)
        assert sum(chunk.count for chunk in step.chunks) <= self.budget
        sampled = [
            self.token(chunk.sequence, choice) for chunk in step.chunks for choice in chunk.draws
        ]
        events += self.scheduler.complete(step, sampled)
        self.pool.check()
        self.take(events)
        return events

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenSampled):
                self.outputs.setdefault((event.work.id, event.choice), []).append(event.token)
        self.events += events

    def compute(self, step: Step) -> None:
        for sequence, blocks in step.swap_out:
            self.saved[sequence.order] = [list(self.slots[block]) for block in blocks]
        for sequence, blocks in step.swap_in:
            for block, content in zip(blocks, self.saved.pop(sequence.order), strict=False):
                self.slots[block] = list(content)
        for source, target in step.copies:
            self.slots[target] = list(self.slots[source])
        for chunk in step.chunks:
            sequence = chunk.sequence
            for position in range(chunk.start, chunk.start + chunk.count):
                block = sequence.blocks[position // SIZE]
                assert not self.pool.is_shared(block), "a shared block is written to"
                self.slots[block][position % SIZE] = self.content(sequence, position)
        for chunk in step.chunks:
            self.check_keys(chunk.sequence, chunk.start + chunk.count)

    def check_keys(self, sequence: SequenceState, end: int) -> None:
        for position in range(end):
            held = self.slots[sequence.blocks[position // SIZE]][position % SIZE]
            assert held == self.content(sequence, position)

    @staticmethod
    def content(sequence: SequenceState, position: int) -> object:
        """What a key depends on: everything up to its token, the pictures among it, the salt."""
        work = sequence.work
        media = tuple((span.mm_hash, span.offset) for span in work.media if span.offset <= position)
        return (tuple(sequence.tokens[: position + 1]), media, work.cache_salt)

    @staticmethod
    def token(sequence: SequenceState, choice: int) -> int:
        """A pretend model: the next token depends on the past and the choice."""
        return 1000 + (sum(sequence.tokens) * 31 + len(sequence.tokens) + 7 * choice) % 997

    def run(self, limit: int = 500) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            self.step()
            if self.steps[-1].empty:
                return
        raise AssertionError("the scheduler does not come to an end")


def work(
    number: int,
    tokens: Sequence[int] | int,
    *,
    outputs: int = 3,
    choices: int = 1,
    **fields: Any,
) -> Work:
    prompt = (
        list(range(number * 100, number * 100 + tokens))
        if isinstance(tokens, int)
        else (list(tokens))
    )
    return Work(
        number,
        prompt,
        len(prompt),
        StopRules(outputs),
        choices=range(choices),
        **fields,
    )


def test_a_prompt_longer_than_a_step_is_computed_in_chunks() -> None:
    bench = Bench(tokens=8)
    bench.add(work(1, 20, outputs=1))
    bench.run()
    chunks = [(c.start, c.count) for step in bench.steps for c in step.chunks]
    assert chunks == [(0, 8), (8, 8), (16, 4)]
    assert len(bench.outputs[1, 0]) == 1


def test_decoding_goes_on_while_a_long_prompt_is_prefilled() -> None:
    bench = Bench(tokens=8)
    bench.add(work(1, 4, outputs=4))
    bench.step()
    bench.add(work(2, 20, outputs=1))
    step, _ = bench.scheduler.schedule()
    assert [(c.sequence.work.id, c.count) for c in step.chunks] == [(1, 1), (2, 7)]


def test_a_finished_request_says_so_and_holds_nothing() -> None:
    bench = Bench()
    only = bench.add(work(1, 5))
    bench.run()
    assert bench.events[-1] == WorkDone(only)
    assert bench.pool.num_used == 0
    assert bench.scheduler.num_running == bench.scheduler.num_waiting == 0


def test_a_common_beginning_is_computed_once() -> None:
    bench = Bench()
    bench.add(work(1, range(14), outputs=1))
    bench.run()
    second = bench.add(work(2, [*range(12), 77, 78], outputs=1))
    bench.run()
    assert second.cached_tokens == 12
    assert [(c.start, c.count) for c in bench.steps[-2].chunks] == [(12, 2)]


def test_at_least_one_token_is_computed_of_a_known_prompt() -> None:
    bench = Bench()
    for number in (1, 2):
        bench.add(work(number, range(8), outputs=1))
        bench.run()
    assert bench.scheduler.num_running == 0
    assert bench.outputs[1, 0] == bench.outputs[2, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"cache_salt": "s"},
        {"media": [MediaSpan("other", 2, 4, ready=True)]},
        {"media": [MediaSpan("one", 1, 4, ready=True)]},
    ],
    ids=["salt", "picture", "place"],
)
def test_equal_tokens_under_another_salt_or_picture_share_nothing(other: dict[str, Any]) -> None:
    bench = Bench()
    bench.add(work(1, range(12), outputs=1, media=[MediaSpan("one", 2, 4, ready=True)]))
    bench.run()
    fields = {"media": [MediaSpan("one", 2, 4, ready=True)]} | other
    second = bench.add(work(2, range(12), outputs=1, **fields))
    bench.run()
    assert second.cached_tokens == 0


def test_the_text_before_a_missing_picture_is_computed_and_the_rest_waits() -> None:
    bench = Bench()
    bench.add(work(1, 12, outputs=1, media=[MediaSpan("one", 5, 4)]))
    bench.step()
    bench.step()
    assert [(c.start, c.count) for s in bench.steps for c in s.chunks] == [(0, 5)]
    bench.scheduler.media_ready(1, 0)
    bench.run()
    assert len(bench.outputs[1, 0]) == 1


def test_a_picture_that_cannot_be_had_ends_the_request_and_frees_its_blocks() -> None:
    bench = Bench()
    only = bench.add(work(1, 12, media=[MediaSpan("one", 5, 4)]))
    bench.step()
    assert bench.scheduler.media_failed(1, 0) == [MediaMissing(only, 0), WorkDone(only)]
    assert bench.pool.num_used == 0


def test_a_failed_picture_whose_tokens_are_cached_is_not_missed() -> None:
    bench = Bench()
    bench.add(work(1, 14, outputs=1, media=[MediaSpan("one", 1, 4, ready=True)]))
    bench.run()
    second = work(2, range(100, 114), outputs=1, media=[MediaSpan("one", 1, 4)])
    bench.add(second)
    assert bench.scheduler.media_failed(2, 0) == []
    bench.run()
    assert len(bench.outputs[2, 0]) == 1


def test_choices_share_the_prompt_and_part_at_the_first_token() -> None:
    bench = Bench()
    bench.add(work(1, 6, outputs=4, choices=3))
    bench.step()
    assert bench.pool.num_used == 2, "one prompt, two blocks"
    bench.run()
    assert len({tuple(bench.outputs[1, choice]) for choice in range(3)}) == 3
    assert bench.pool.num_used == 0


def test_one_choice_can_be_ended_alone() -> None:
    bench = Bench()
    bench.add(work(1, 6, outputs=5, choices=2))
    bench.step()
    bench.scheduler.abort(1, 0)
    bench.run()
    assert (len(bench.outputs[1, 0]), len(bench.outputs[1, 1])) == (1, 5)


def test_without_blocks_the_youngest_is_swapped_out_and_finishes_later() -> None:
    bench = Bench(blocks=6, caching=False)
    alone = Bench(blocks=64, caching=False)
    for target in (bench, alone):
        for number in (1, 2, 3):
            target.add(work(number, 7, outputs=12))
        target.run()
    assert any(step.swap_out for step in bench.steps)
    assert bench.outputs == alone.outputs
    assert bench.pool.num_used == 0


def test_a_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    bench = Bench(blocks=6)
    bench.add(work(1, 12, outputs=2))
    bench.add(work(2, 16, outputs=1))
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (1, 1)
    bench.run()
    assert len(bench.outputs[2, 0]) == 1


def test_a_prefill_keeps_its_blocks_until_they_are_released() -> None:
    bench = Bench()
    only = bench.add(work(1, 6, outputs=4, goal="prefill"))
    bench.run()
    done = [event for event in bench.events if isinstance(event, PrefillDone)]
    assert len(done[0].blocks) == bench.pool.num_used == 2
    assert bench.events[-1] == WorkDone(only)
    bench.scheduler.release(1)
    bench.scheduler.release(1)
    assert bench.pool.num_used == 0


def test_a_prefill_whose_first_token_is_its_last_keeps_nothing() -> None:
    bench = Bench()
    bench.add(work(1, 6, outputs=1, goal="prefill"))
    bench.run()
    assert [e.blocks for e in bench.events if isinstance(e, PrefillDone)] == [[]]
    assert bench.pool.num_used == 0


def test_handed_over_blocks_are_filled_first_and_decoding_goes_on_after_the_first_token() -> None:
    whole = Bench()
    whole.add(work(1, 6, outputs=5))
    whole.run()
    expected = whole.outputs[1, 0]
    bench = Bench()
    adopted = work(1, range(100, 106), outputs=5, first_tokens=(expected[0],))
    bench.add(adopted)
    bench.step()
    ready = next(event for event in bench.events if isinstance(event, BlocksReady))
    sequence = adopted.sequences[0]
    for position in range(6):
        block = ready.blocks[position // SIZE]
        bench.slots[block][position % SIZE] = bench.content(sequence, position)
    bench.take(bench.scheduler.loaded(1))
    bench.run()
    assert bench.outputs[1, 0] == expected[1:]
    assert bench.pool.num_used == 0


def test_a_request_resumed_after_outputs_counts_them() -> None:
    whole = Bench()
    whole.add(work(1, 6, outputs=5))
    whole.run()
    expected = whole.outputs[1, 0]
    bench = Bench()
    resumed = Work(1, [*range(100, 106), *expected[:2]], 6, StopRules(5))
    bench.add(resumed)
    bench.run()
    assert bench.outputs[1, 0] == expected[2:]


@pytest.mark.parametrize(
    ("rules", "token", "outputs", "total", "expected"),
    [
        (StopRules(9, eos=frozenset({5})), 5, 1, 9, ("stop", None)),
        (StopRules(9, stop=frozenset({5})), 5, 1, 9, ("stop", 5)),
        (StopRules(9, min_tokens=2, stop=frozenset({5})), 5, 1, 9, None),
        (StopRules(3), 5, 3, 9, ("length", None)),
        (StopRules(99, max_total=9), 5, 3, 9, ("length", None)),
        (StopRules(3, eos=frozenset({5})), 5, 3, 9, ("stop", None)),
        (StopRules(9), 5, 3, 9, None),
    ],
)
def test_stop_rules(
    rules: StopRules, token: int, outputs: int, total: int, expected: object
) -> None:
    assert rules.check(token, outputs, total) == expected


requests = st.lists(
    st.tuples(
        st.integers(1, 20),  # prompt
        st.integers(1, 9),  # outputs
        st.integers(1, 3),  # choices
        st.booleans(),  # a picture
        st.booleans(),  # prefill only
        st.integers(0, 3),  # which prefix it begins with
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=requests,
    tokens=st.integers(4, 24),
    aborts=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 12)), max_size=4),
    data=st.data(),
)
def test_whatever_comes_and_goes_answers_are_those_of_a_request_alone(  # noqa: C901
    requests: list[tuple[int, int, int, bool, bool, int]],
    tokens: int,
    aborts: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    """Any mix, a cache that is too small for it, pictures that come late, aborts in between."""

    def make(number: int, spec: tuple[int, int, int, bool, bool, int], ready: bool) -> Work:
        prompt, outputs, choices, has_media, prefill, family = spec
        media = [MediaSpan(f"m{family}", 0, min(prompt, 3), ready=ready)] if has_media else []
        goal = "prefill" if prefill else "generate"
        ids = range(family * 100, family * 100 + prompt)
        return work(number, ids, outputs=outputs, choices=choices, media=media, goal=goal)

    bench = Bench(blocks=9, seqs=4, tokens=tokens)
    for number, spec in enumerate(requests, start=1):
        bench.add(make(number, spec, ready=False))
    pending = [n for n, spec in enumerate(requests, start=1) if spec[3]]
    aborted = set()
    for round_ in range(400):
        for number, when in aborts:
            if when == round_:
                bench.take(bench.scheduler.abort(number))
                aborted.add(number)
        if pending and data.draw(st.booleans()):
            bench.scheduler.media_ready(pending.pop(0), 0)
        bench.step()
        for event in bench.events:
            if isinstance(event, PrefillDone):
                bench.scheduler.release(event.work.id)
        if bench.steps[-1].empty and not pending and round_ > 12:
            break
    assert bench.pool.num_used == 0
    assert bench.scheduler.num_running == bench.scheduler.num_waiting == 0
    for number, spec in enumerate(requests, start=1):
        alone = Bench(blocks=64, caching=False)
        alone.add(make(number, spec, ready=True))
        alone.run()
        for key, expected in alone.outputs.items():
            got = bench.outputs.get(key, [])
            assert got == (expected[: len(got)] if number in aborted else expected)
