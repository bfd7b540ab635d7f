"""Descriptors of bytes that travel outside a request.

A descriptor says who holds an item (pixels, an embedding, KV blocks) and how to ask for it. We
emit `{"ec_items": [{"mm_hash", "peer_host", ...}]}`; vLLM's connectors use a map keyed by hash.
Both are read, and a foreign one is passed on as it came.
"""

from __future__ import annotations

from typing import Any

import msgspec


class EcItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one item is and how it may be fetched.

    Attributes:
        mm_hash: the item's content hash.
        peer_host, peer_port: the exchange of the process that holds it.
        key: the entry's key in that process's store (see `ec_connector.keys`).
        epoch: random id of that process's life; a restarted peer has another one.
        shape, dtype: of the tensor; pixels travel as one `uint8` row of codec bytes.
        nbytes: size of the entry in bytes.
        transports: names that the holder offers.
        expires_at: Unix seconds until which the holder keeps the entry for this descriptor.
        mac: hex HMAC-SHA256 of the fields above under the cluster token.
    """

    mm_hash: str
    peer_host: str
    peer_port: int = 5601
    key: str = ""
    epoch: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    transports: tuple[str, ...] = ()
    expires_at: float = 0.0
    mac: str = ""


class EcParams(msgspec.Struct, frozen=True):
    """`ec_transfer_params` once parsed.

    Attributes:
        items: mm_hash -> our descriptor, or the document's minimal form of it.
        foreign: mm_hash -> entry of a map keyed by hash, untouched.
    """

    items: dict[str, EcItem]
    foreign: dict[str, Any]


def parse_ec_params(params: dict[str, Any]) -> EcParams:
    """Read either form of `ec_transfer_params`.

    Raises:
        ValueError: `ec_items` is there and malformed.
    """
    rest = dict(params)
    listed = rest.pop("ec_items", [])
    try:
        items = msgspec.convert(listed, list[EcItem])
    except msgspec.ValidationError as error:
        raise ValueError(f"ec_items: {error}") from None
    return EcParams({item.mm_hash: item for item in items}, rest)


def ec_params(items: list[EcItem]) -> dict[str, Any]:
    """The documented form, as JSON values."""
    return {"ec_items": [msgspec.to_builtins(item) for item in items]}


class KvHandoff(msgspec.Struct, frozen=True, omit_defaults=True):
    """Our `kv_transfer_params`: the KV blocks of one prefilled request.

    Attributes:
        source: descriptor of the blocks; `shape` is [blocks, bytes per block].
        num_tokens: tokens whose keys and values the blocks hold.
        block_size: tokens per block.
        first_tokens: the token that prefill sampled, per choice; decode goes on after it.
        position_delta: a later token's position minus its index, which media make differ.
    """

    source: EcItem
    num_tokens: int
    block_size: int
    first_tokens: tuple[int, ...]
    position_delta: int = 0


def parse_kv_handoff(params: dict[str, Any]) -> KvHandoff | None:
    """Our handoff in `kv_transfer_params`, or None where they are of a foreign connector.

    Raises:
        ValueError: `triptych_kv` is there and malformed.
    """
    if "triptych_kv" not in params:
        return None
    try:
        return msgspec.convert(params["triptych_kv"], KvHandoff)
    except msgspec.ValidationError as error:
        raise ValueError(f"triptych_kv: {error}") from None


def kv_params(handoff: KvHandoff) -> dict[str, Any]:
    """The handoff as JSON values."""
    return {"triptych_kv": msgspec.to_builtins(handoff)}
