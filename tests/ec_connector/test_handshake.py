from __future__ import annotations

import pytest

from ec_connector.handshake import ConsumerHandshake, HandshakeFailed, ProducerHandshake, Secret
from ec_connector.messages import (
    WIRE_VERSION,
    Challenge,
    Hello,
    Proof,
    Welcome,
    handshake_frame,
    pack,
)
from protocol.errors import TransferError


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


def pair(
    consumer_token: str = "t", producer_token: str = "t", purpose: str = "exchange"
) -> tuple[ConsumerHandshake, ProducerHandshake]:
    return (
        ConsumerHandshake(Secret(consumer_token), purpose, "fp-c"),
        ProducerHandshake(Secret(producer_token), "exchange", "epoch", "fp-p"),
    )


def test_both_sides_prove_the_token_without_sending_it() -> None:
    consumer, producer = pair("sesame", "sesame")
    sent = [consumer.hello]
    sent.append(producer.receive(body(sent[-1])) or b"")
    answer = consumer.receive(body(sent[-1]))
    assert isinstance(answer, bytes)
    sent.append(answer)
    assert producer.receive(body(sent[-1])) is None
    welcome = consumer.receive(body(pack(Welcome({"tcp": b"x"}))))
    assert isinstance(welcome, Welcome)
    assert (consumer.epoch, consumer.peer_fingerprint) == ("epoch", "fp-p")
    assert producer.peer_fingerprint == "fp-c"
    assert not any(b"sesame" in frame for frame in sent)


def test_a_consumer_refuses_a_producer_with_another_token() -> None:
    consumer, producer = pair("t", "u")
    challenge = producer.receive(body(consumer.hello))
    assert challenge is not None
    with pytest.raises(TransferError, match="another cluster token") as caught:
        consumer.receive(body(challenge))
    assert caught.value.kind == "incompatible"


def test_a_producer_refuses_a_consumer_with_another_token() -> None:
    honest, producer = pair()
    challenge = producer.receive(body(honest.hello))
    assert challenge is not None
    frame = handshake_frame.decode(body(challenge))
    thief = ConsumerHandshake(Secret("guess"), "exchange", "fp")
    with pytest.raises(TransferError):
        thief.receive(body(challenge))
    assert isinstance(frame, Challenge)
    with pytest.raises(HandshakeFailed, match="wrong cluster token"):
        producer.receive(body(pack(Proof(frame.proof))))  # its own proof, sent back


def test_a_proof_for_one_service_does_not_open_another() -> None:
    consumer, producer = pair(purpose="tcp")
    with pytest.raises(HandshakeFailed):
        producer.receive(body(consumer.hello))


def test_another_version_is_named() -> None:
    _, producer = pair()
    hello = pack(Hello(WIRE_VERSION + 1, "exchange", b"n" * 16, "fp"))
    with pytest.raises(HandshakeFailed, match="version"):
        producer.receive(body(hello))


@pytest.mark.parametrize("rubbish", [b"", b"\xc1", b"GET / HTTP/1.1\r\n", b"\x81\xa4type\xa4read"])
def test_rubbish_is_refused_on_both_sides(rubbish: bytes) -> None:
    consumer, producer = pair()
    with pytest.raises(HandshakeFailed):
        producer.receive(rubbish)
    with pytest.raises(TransferError):
        consumer.receive(rubbish)
