"""Mutual proof of the cluster token, without I/O: frame bodies in, frames out.

Each side answers the other's random challenge with an HMAC under a key derived from the token.
The producer proves first, so a consumer tells a stranger nothing but a random number. The
transports use it for their own connections too, each under its own `purpose`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

import msgspec

from ec_connector.messages import (
    WIRE_VERSION,
    Challenge,
    Hello,
    Proof,
    Refused,
    Welcome,
    handshake_frame,
    pack,
)
from protocol.errors import TransferError

HANDSHAKE_S = 5.0
"""How long a stranger may take."""


class HandshakeFailed(Exception):
    """The peer is not one of ours; `reply` is what to tell it before closing."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reply = pack(Refused(message))


class Secret:
    """The key that proofs are made with."""

    def __init__(self, token: str) -> None:
        self._key = hashlib.sha256(b"triptych exchange\0" + token.encode()).digest()

    def proof(self, side: Literal["consumer", "producer"], *parts: bytes) -> bytes:
        """HMAC of who proves and of both challenges."""
        message = msgspec.msgpack.encode((side, *parts))
        return hmac.digest(self._key, message, hashlib.sha256)


class ProducerHandshake:
    """The producer's side of one connection."""

    def __init__(self, secret: Secret, purpose: str, epoch: str, fingerprint: str) -> None:
        self._secret = secret
        self._purpose = purpose
        self._epoch = epoch
        self._fingerprint = fingerprint
        self._nonce = secrets.token_bytes(16)
        self._hello: Hello | None = None
        self.peer_fingerprint = ""

    def receive(self, body: bytes | memoryview) -> bytes | None:
        """Take a frame; returns the answer, or None when the peer is in and gets a Welcome.

        Raises:
            HandshakeFailed: wrong version, purpose, token or form.
        """
        try:
            frame = handshake_frame.decode(body)
        except msgspec.DecodeError:
            raise HandshakeFailed("malformed handshake") from None
        if isinstance(frame, Hello) and self._hello is None:
            if frame.version != WIRE_VERSION:
                raise HandshakeFailed(f"exchange version {WIRE_VERSION} here, {frame.version}")
            if frame.purpose != self._purpose:
                raise HandshakeFailed(f"this is not {frame.purpose!r}")
            self._hello = frame
            self.peer_fingerprint = frame.fingerprint
            proof = self._secret.proof("producer", *self._parts(frame))
            return pack(Challenge(WIRE_VERSION, self._nonce, proof, self._epoch, self._fingerprint))
        if isinstance(frame, Proof) and self._hello is not None:
            expected = self._secret.proof("consumer", *self._parts(self._hello))
            if hmac.compare_digest(expected, frame.proof):
                return None
            raise HandshakeFailed("wrong cluster token")
        raise HandshakeFailed("unexpected handshake frame")

    def _parts(self, hello: Hello) -> tuple[bytes, ...]:
        return (self._purpose.encode(), hello.nonce, self._nonce, self._epoch.encode())


class ConsumerHandshake:
    """The consumer's side of one connection."""

    def __init__(self, secret: Secret, purpose: str, fingerprint: str) -> None:
        self._secret = secret
        self._purpose = purpose
        self._nonce = secrets.token_bytes(16)
        self.hello = pack(Hello(WIRE_VERSION, purpose, self._nonce, fingerprint))
        self.epoch = ""
        self.peer_fingerprint = ""

    def receive(self, body: bytes | memoryview) -> bytes | Welcome:
        """Take a frame; returns the answer, or the Welcome that ends the handshake.

        Raises:
            TransferError: `incompatible`: another version or token, or not an exchange at all.
        """
        try:
            frame = handshake_frame.decode(body)
        except msgspec.DecodeError:
            raise TransferError("the peer does not speak our exchange", "incompatible") from None
        if isinstance(frame, Refused):
            raise TransferError(f"the peer refused us: {frame.message[:200]}", "incompatible")
        if isinstance(frame, Challenge) and not self.epoch:
            parts = (self._purpose.encode(), self._nonce, frame.nonce, frame.epoch.encode())
            if frame.version != WIRE_VERSION:
                raise TransferError(
                    f"exchange version {WIRE_VERSION} here, {frame.version} at the peer",
                    "incompatible",
                )
            if not hmac.compare_digest(self._secret.proof("producer", *parts), frame.proof):
                raise TransferError("the peer has another cluster token", "incompatible")
            self.epoch, self.peer_fingerprint = frame.epoch, frame.fingerprint
            return pack(Proof(self._secret.proof("consumer", *parts)))
        if isinstance(frame, Welcome) and self.epoch:
            return frame
        raise TransferError("unexpected handshake frame", "incompatible")
