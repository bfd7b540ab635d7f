"""What is let in and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.admission import Admission, AdmissionConfig
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
