"""What is let in and what is refused."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from coordinator.admission import Admission, AdmissionConfig, Ticket
from protocol.errors import Overloaded
from tests.coordinator.conftest import SPLIT, Start
from tests.coordinator.stub_words import eventually


def test_requests_above_the_limit_are_refused_until_one_leaves() -> None:
    admission = Admission(AdmissionConfig(requests=2))
    first = admission.enter(10)
    admission.enter(10)
    with pytest.raises(Overloaded) as refused:
        admission.enter(10)
    assert refused.value.retry_after
    first.close()
    first.close()
    admission.enter(10)
    assert (admission.requests, admission.body_bytes) == (2, 20)


def test_body_bytes_are_limited_but_a_single_body_is_let_in() -> None:
    admission = Admission(AdmissionConfig(body_bytes=100))
    big = admission.enter(1000)
    with pytest.raises(Overloaded):
        admission.enter(1)
    big.close()
    admission.enter(1)


def test_images_leave_room_for_text() -> None:
    admission = Admission(AdmissionConfig(requests=10, text_share=0.2))
    for _ in range(8):
        admission.enter(1).expect(images=1, new_tokens=0)
    ninth = admission.enter(1)
    with pytest.raises(Overloaded):
        ninth.expect(images=1, new_tokens=0)
    ninth.close()
    for _ in range(2):
        admission.enter(1).expect(images=0, new_tokens=0)


def test_image_tokens_are_learned_from_what_was_rendered() -> None:
    admission = Admission(AdmissionConfig(image_tokens=1000))
    for _ in range(60):
        ticket = admission.enter(1)
        ticket.expect(images=1, new_tokens=0)
        ticket.correct(image_tokens=10, images=1, kv_tokens=10)
        ticket.close()
    assert (admission.image_tokens, admission.kv_tokens) == (0, 0)
    for _ in range(20):
        admission.enter(1).expect(images=2, new_tokens=0)
    assert admission.image_tokens < 1000


def test_kv_tokens_are_limited() -> None:
    admission = Admission(AdmissionConfig(kv_tokens=100))
    admission.enter(40).expect(images=0, new_tokens=80)
    with pytest.raises(Overloaded):
        admission.enter(40).expect(images=0, new_tokens=10)


def test_what_was_refused_counts_for_nothing_once_closed() -> None:
    admission = Admission(AdmissionConfig(requests=4, image_tokens=300))
    kept = admission.enter(1)
    kept.expect(images=1, new_tokens=5)
    refused = admission.enter(1)
    with pytest.raises(Overloaded):
        refused.expect(images=1, new_tokens=5)
    refused.close()
    kept.close()
    assert (admission.requests, admission.image_tokens, admission.kv_tokens) == (0, 0, 0)


async def test_too_many_requests_get_429_with_retry_after(start: Start) -> None:
    async with start(SPLIT, admission=AdmissionConfig(requests=2)) as stage:
        stage.of("decode")[0].gate.clear()
        running = [asyncio.create_task(stage.chat("hi")) for _ in range(2)]
        await eventually(lambda: stage.cluster.running == 2)
        refused = await stage.chat("hi")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["retryable"] is True
        assert (await stage.client.get("/health")).status_code == 200
        stage.of("decode")[0].gate.set()
        assert {(await one).status_code for one in running} == {200}
        assert (await stage.chat("hi")).status_code == 200


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(clock: Clock, per_s: float) -> Admission:
    """An admission that has seen requests get their first token at a pace."""
    admission = Admission(AdmissionConfig(wait_s=10.0), clock)
    for _ in range(int(15 * per_s) + 1):
        ticket = admission.enter(10)
        clock.now += 1 / per_s
        ticket.first_token()
        ticket.first_token()
        ticket.close()
    assert admission.waiting == 0
    return admission


def let_in(admission: Admission) -> list[Ticket]:
    """As many as it takes."""
    tickets: list[Ticket] = []
    with contextlib.suppress(Overloaded):
        while len(tickets) < 1000:
            tickets.append(admission.enter(10))
    return tickets


def test_who_would_wait_too_long_is_refused_at_once() -> None:
    """At 5 per second 50 requests wait 10 s."""
    clock = Clock()
    admission = paced(clock, 5.0)
    tickets = let_in(admission)
    assert len(tickets) in (50, 51)
    with pytest.raises(Overloaded):
        admission.enter(10)
    tickets.pop().first_token()
    tickets.pop().close()
    admission.enter(10)


def test_a_few_may_always_wait() -> None:
    assert len(let_in(paced(Clock(), 0.5))) == 32


def test_long_answers_are_no_wait() -> None:
    admission = paced(Clock(), 5.0)
    tickets = let_in(admission)
    for ticket in tickets:
        ticket.first_token()
    assert admission.waiting == 0
    assert admission.requests == len(tickets)
    admission.enter(10)


def test_the_pace_of_a_quiet_time_says_little_and_the_best_one_is_forgotten_slowly() -> None:
    clock = Clock()
    admission = paced(clock, 20.0)
    fast = admission.pace(clock.now)
    assert 18 < fast < 21
    clock.now += 60
    assert admission.pace(clock.now) == pytest.approx(fast / 2)


def test_the_wait_is_not_limited_before_a_pace_is_known_or_where_told_so() -> None:
    for admission in (Admission(AdmissionConfig()), Admission(AdmissionConfig(wait_s=0.0))):
        for _ in range(500):
            admission.enter(10)


def test_a_refusal_says_when_to_come_back() -> None:
    clock = Clock()
    admission = paced(clock, 5.0)
    let_in(admission)
    clock.now += 60  # the pace counts half: twice the wait
    with pytest.raises(Overloaded) as caught:
        admission.enter(10)
    assert caught.value.retry_after == pytest.approx(11.0, abs=1.0)
