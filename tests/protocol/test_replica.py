"""Fingerprints: everything that must agree is in the digest."""

from __future__ import annotations

import msgspec
import pytest

from protocol.replica import DECODES, ENCODES, PREFILLS, WORKER_ROLES, Fingerprint, Replica

BASE = Fingerprint("m", "r", "float32", "kv1/16")


@pytest.mark.parametrize("field", Fingerprint.__struct_fields__)
def test_a_change_of_any_part_changes_the_digest(field: str) -> None:
    assert msgspec.structs.replace(BASE, **{field: "other"}).digest != BASE.digest


def test_parts_cannot_run_into_each_other() -> None:
    assert Fingerprint("ab", "c", "d", "e").digest != Fingerprint("a", "bc", "d", "e").digest


def test_every_worker_role_does_something() -> None:
    assert set(WORKER_ROLES) == ENCODES | PREFILLS | DECODES


def test_a_replica_survives_the_wire() -> None:
    replica = Replica("id", "prefill", "h:1", "http://h:2", BASE, "demo", has_vision=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(replica), type=Replica) == replica
