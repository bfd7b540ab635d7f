"""Signing descriptors, and deciding whether to follow one that came in a request.

A descriptor travels through clients and JSON. Only a peer that knows the cluster token can make
one that others follow, so a request cannot have a worker connect to a host of its choice.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time

import msgspec

from ec_connector.config import EcConfig, is_loopback
from ec_connector.keys import belongs_to
from ec_connector.memory import Memory
from protocol.errors import InvalidRequest, TransferError
from protocol.items import itemsize
from protocol.transfer import EcItem

CLOCK_SKEW_S = 300.0
"""How far an expiry may lie back before the descriptor is refused unasked: clocks differ between
hosts, and the holder, who has the clock that counts, may hold the item longer than it said."""

_PARAM = "ec_transfer_params"


class Signer:
    """Makes and checks the MAC of descriptors under one cluster token."""

    def __init__(self, token: str) -> None:
        self._key = hashlib.sha256(b"triptych descriptor\0" + token.encode()).digest()

    def sign(self, item: EcItem) -> EcItem:
        """The descriptor with its MAC."""
        return msgspec.structs.replace(item, mac=self._mac(item))

    def is_signed(self, item: EcItem) -> bool:
        """Whether the MAC is ours."""
        return hmac.compare_digest(item.mac.encode(), self._mac(item).encode())

    def _mac(self, item: EcItem) -> str:
        fields = (
            item.mm_hash,
            item.peer_host,
            item.peer_port,
            item.key,
            item.epoch,
            item.shape,
            item.dtype,
            item.nbytes,
            item.transports,
            item.expires_at,
        )
        return hmac.new(self._key, msgspec.msgpack.encode(fields), hashlib.sha256).hexdigest()


class Gate:
    """Which descriptors a consumer follows."""

    def __init__(self, config: EcConfig, signer: Signer) -> None:
        self._config = config
        self._signer = signer

    def check(self, item: EcItem, fingerprint: str | None = None) -> None:
        """Check a descriptor before anything is sent to the host that it names.

        An empty cluster token proves nothing, so without one a signed descriptor is followed on
        loopback and to allowed hosts only.

        Raises:
            InvalidRequest: the MAC is wrong, or it has none and the host is not allowed.
            TransferError: `expired`; or `incompatible`: larger than the limit, or not made with
                `fingerprint`.
        """
        if item.mac and not self._signer.is_signed(item):
            raise InvalidRequest(f"the descriptor of item {item.mm_hash} has a wrong mac", _PARAM)
        vouched = bool(item.mac) and (self._config.cluster_token or is_loopback(item.peer_host))
        if not vouched and item.peer_host not in self._config.allowed_hosts:
            raise InvalidRequest(
                f"the descriptor of item {item.mm_hash} is not signed and names a host that "
                "ec.allowed_hosts does not list",
                _PARAM,
            )
        if item.nbytes > self._config.max_item_bytes:
            raise TransferError(
                f"item {item.mm_hash} has {item.nbytes} bytes, over ec.max_item_bytes",
                "incompatible",
                (item.mm_hash,),
            )
        if item.expires_at and item.expires_at + CLOCK_SKEW_S < time.time():
            raise TransferError(
                f"the descriptor of item {item.mm_hash} has expired", "expired", (item.mm_hash,)
            )
        if fingerprint is not None and item.key and not belongs_to(item.key, fingerprint):
            raise TransferError(
                f"item {item.mm_hash} is of another model, dtype or layout",
                "incompatible",
                (item.mm_hash,),
            )


class Describer:
    """Makes the descriptors of one process.

    Attributes:
        port: of its exchange, once it listens.
    """

    def __init__(self, config: EcConfig, signer: Signer, epoch: str, memory: Memory) -> None:
        self._config = config
        self._signer = signer
        self._epoch = epoch
        self._memory = memory
        self.port = 0

    def until(self, lease_s: float | None) -> tuple[float, float]:
        """The end of a lease that begins now, on the monotonic clock and as Unix time."""
        seconds = self._config.lease_s if lease_s is None else lease_s
        return time.monotonic() + seconds, time.time() + seconds

    def describe(
        self,
        mm_hash: str,
        key: str,
        form: tuple[int, tuple[int, ...], str],
        expires_at: float,
        region: int,
    ) -> EcItem:
        """A signed descriptor of an item of (nbytes, shape, dtype) in a region."""
        nbytes, shape, dtype = form
        return self._signer.sign(
            EcItem(
                mm_hash=mm_hash,
                peer_host=self._config.advertised,
                peer_port=self.port,
                key=key,
                epoch=self._epoch,
                shape=tuple(shape),
                dtype=dtype,
                nbytes=nbytes,
                transports=self._memory.transports_of(region),
                expires_at=expires_at,
            )
        )


def check_form(
    mm_hash: str, nbytes: int | None, shape: tuple[int, ...], dtype: str, limit: int
) -> int:
    """Check that size, shape and dtype agree; returns the size in bytes.

    Raises:
        TransferError: `invalid_content`.
    """
    if any(extent < 0 for extent in shape):
        raise TransferError(f"shape {shape} has a negative extent", "invalid_content", (mm_hash,))
    needed = itemsize(dtype) * math.prod(shape)
    if nbytes is not None and nbytes != needed:
        raise TransferError(
            f"{nbytes} bytes are not {dtype}{list(shape)}", "invalid_content", (mm_hash,)
        )
    if not 0 < needed <= limit:
        raise TransferError(
            f"an item of {needed} bytes is empty or over ec.max_item_bytes",
            "invalid_content",
            (mm_hash,),
        )
    return needed
