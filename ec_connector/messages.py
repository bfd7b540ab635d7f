"""What peers say to each other: MessagePack maps in length-prefixed frames.

    consumer                                   producer
    Hello(nonce)             ─────────────▶
                             ◀─────────────    Challenge(nonce, proof)
    Proof(proof)             ─────────────▶
                             ◀─────────────    Welcome(capabilities)
    Read(id, key, transport) ─────────────▶
                             ◀─────────────    Granted(id, lease, spans) | Failed(id, error)
    Release(leases)          ─────────────▶    one-way
    Renew(leases)            ─────────────▶
                             ◀─────────────    Renewed(leases)

A `Read` of an item that is being encoded is answered when it is there. The cluster token never
crosses: both sides prove that they know it (`handshake`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from protocol.errors import WireError

WIRE_VERSION = 2
MAX_FRAME = 16 * 2**20
"""Bytes of a frame's body; a list of some hundred thousand spans fits."""

MAX_HANDSHAKE_FRAME = 4096


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A consumer's first word; `purpose` keeps a proof for one service from another's use."""

    version: int
    purpose: str
    nonce: bytes
    fingerprint: str


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The producer's proof, and what the consumer must prove in turn."""

    version: int
    nonce: bytes
    proof: bytes
    epoch: str
    fingerprint: str


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """The consumer's proof."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The consumer is in. `transports`: name -> what its link needs to know."""

    transports: dict[str, bytes]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The consumer is not in."""

    message: str


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Acquire an item and, where the transport pushes, have it sent.

    Attributes:
        id: of this request on this connection.
        key: of the entry; "" for an unsigned descriptor, then it follows from `mm_hash`.
        epoch: the life of the producer that the descriptor is from, "" if unknown.
        expires_at: the descriptor's, to tell `expired` from `missing`.
        wait_s: how long to wait for an item that is being encoded.
        transport: name of the transport.
        route: where that transport shall send to.
        inline: the bytes may be in the answer; then no route is needed.
    """

    id: int
    key: str
    mm_hash: str
    epoch: str
    expires_at: float
    wait_s: float
    transport: str
    route: bytes
    inline: bool = False


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    """A lease, and where the bytes are.

    Attributes:
        lease: its random id.
        lease_s: seconds until it ends unless renewed, counted by the producer from now.
        region, spans: (offset, nbytes) of the bytes in a region of the producer.
        checksum: crc32c of the bytes, None where it was not taken.
        data: the bytes, where they are few and were asked for so.
    """

    id: int
    lease: bytes
    lease_s: float
    region: int
    spans: tuple[tuple[int, int], ...]
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    checksum: int | None = None
    data: bytes | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A `Read` that got no lease."""

    id: int
    error: WireError


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The consumer no longer wants this `Read`; a lease that it got meanwhile ends."""

    id: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Leases that end: read to the end, or given up (an offer then stays for another try)."""

    done: tuple[bytes, ...] = ()
    aborted: tuple[bytes, ...] = ()


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Leases that are still needed."""

    id: int
    leases: tuple[bytes, ...]


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Those of them that exist, now good for their full time again."""

    id: int
    leases: tuple[bytes, ...]


class Capabilities(msgspec.Struct, frozen=True, tag="capabilities"):
    """`Welcome.transports` again, after a region was added."""

    transports: dict[str, bytes]


FromConsumer: TypeAlias = Read | Cancel | Release | Renew
FromProducer: TypeAlias = Granted | Failed | Renewed | Capabilities
HandshakeFrame: TypeAlias = Hello | Challenge | Proof | Welcome | Refused
Frame: TypeAlias = FromConsumer | FromProducer | HandshakeFrame

_encoder = msgspec.msgpack.Encoder()


def pack(frame: Frame) -> bytes:
    """A frame with its length in front (4 bytes, big-endian)."""
    buffer = bytearray(4)
    _encoder.encode_into(frame, buffer, 4)
    buffer[:4] = (len(buffer) - 4).to_bytes(4, "big")
    return bytes(buffer)


from_consumer: msgspec.msgpack.Decoder[FromConsumer] = msgspec.msgpack.Decoder(FromConsumer)
from_producer: msgspec.msgpack.Decoder[FromProducer] = msgspec.msgpack.Decoder(FromProducer)
handshake_frame: msgspec.msgpack.Decoder[HandshakeFrame] = msgspec.msgpack.Decoder(HandshakeFrame)
