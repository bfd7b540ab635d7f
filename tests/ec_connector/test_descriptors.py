from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_connector.config import EcConfig
from ec_connector.descriptors import CLOCK_SKEW_S, Gate, Signer, check_form
from ec_connector.keys import belongs_to, item_key, offer_key
from protocol.errors import InvalidRequest, TransferError
from protocol.transfer import EcItem

ITEM = EcItem(
    mm_hash="h",
    peer_host="10.0.0.1",
    peer_port=7000,
    key="k/1",
    epoch="e",
    shape=(2, 3),
    dtype="float32",
    nbytes=24,
    transports=("tcp",),
    expires_at=time.time() + 1e6,
)

CHANGES: dict[str, object] = {
    "mm_hash": "other",
    "peer_host": "10.0.0.2",
    "peer_port": 7001,
    "key": "k/2",
    "epoch": "f",
    "shape": (3, 2),
    "dtype": "int32",
    "nbytes": 25,
    "transports": ("shm",),
    "expires_at": 1.0,
}


def gate(token: str = "token", **more: object) -> Gate:
    config = msgspec.convert({"cluster_token": token, **more}, EcConfig)
    return Gate(config, Signer(token))


def test_a_signed_descriptor_survives_json_and_is_followed() -> None:
    signed = Signer("token").sign(ITEM)
    read = msgspec.json.decode(msgspec.json.encode(signed), type=EcItem)
    gate().check(read)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_no_field_can_be_changed_after_signing(field: str) -> None:
    signed = Signer("token").sign(ITEM)
    forged = msgspec.structs.replace(signed, **{field: CHANGES[field]})
    with pytest.raises(InvalidRequest, match="wrong mac"):
        gate(allowed_hosts=["10.0.0.1", "10.0.0.2"]).check(forged)


def test_every_field_is_covered() -> None:
    assert {*CHANGES, "mac"} == set(EcItem.__struct_fields__)


@given(st.text(max_size=64))
def test_a_made_up_mac_is_refused(mac: str) -> None:
    with pytest.raises(InvalidRequest):
        gate().check(msgspec.structs.replace(ITEM, mac=mac))


def test_a_mac_under_another_token_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        gate().check(Signer("other").sign(ITEM))


def test_an_unsigned_descriptor_needs_an_allowed_host() -> None:
    minimal = EcItem(mm_hash="h", peer_host="10.0.0.1")
    with pytest.raises(InvalidRequest, match="allowed_hosts"):
        gate().check(minimal)
    gate(allowed_hosts=["10.0.0.1"]).check(minimal)


def test_without_a_token_a_signature_opens_loopback_only() -> None:
    local = msgspec.structs.replace(ITEM, peer_host="127.0.0.1")
    gate("").check(Signer("").sign(local))
    with pytest.raises(InvalidRequest):
        gate("").check(Signer("").sign(ITEM))


def test_an_item_over_the_limit_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(TransferError) as caught:
        gate(max_item_bytes=23).check(Signer("token").sign(ITEM))
    assert caught.value.kind == "incompatible"
    assert caught.value.items == ("h",)


def test_a_long_expired_descriptor_is_refused_unasked() -> None:
    old = msgspec.structs.replace(ITEM, expires_at=time.time() - CLOCK_SKEW_S - 1)
    with pytest.raises(TransferError) as caught:
        gate().check(Signer("token").sign(old))
    assert caught.value.kind == "expired"


@pytest.mark.parametrize(
    ("nbytes", "shape", "dtype"),
    [
        (23, (2, 3), "float32"),
        (0, (0, 3), "float32"),
        (4, (-2, -2), "uint8"),
        (101, (101,), "int8"),
    ],
)
def test_size_shape_and_dtype_must_agree(nbytes: int, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(TransferError) as caught:
        check_form("h", nbytes, shape, dtype, 100)
    assert caught.value.kind == "invalid_content"


def test_keys_separate_fingerprints_and_salts_and_reveal_neither() -> None:
    keys = {
        item_key("model-a", "", "h"),
        item_key("model-b", "", "h"),
        item_key("model-a", "salt", "h"),
        item_key("model-a", "sal", "th"),
        offer_key("model-a"),
        offer_key("model-a"),
    }
    assert len(keys) == 6
    assert belongs_to(item_key("model-a", "salt", "h"), "model-a")
    assert not belongs_to(item_key("model-a", "salt", "h"), "model-b")
    assert not any("salt" in key or "model" in key for key in keys)
