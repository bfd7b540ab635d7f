"""Settings that cannot work are refused before anything is loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from workers.config import WorkerConfig
from workers.server import WorkerServer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_bytes", 0),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 8),
        ("threads", -1),
        ("max_model_len", -1),
    ],
)
def test_an_impossible_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        WorkerConfig(model="m", role="all", **{field: value})
    assert caught.value.param == field


def test_unknown_keys_and_roles_are_refused() -> None:
    for given in ({"role": "chef"}, {"role": "all", "kv_gigabytes": 3}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"model": "m"} | given, WorkerConfig)


def test_an_open_address_needs_a_cluster_token() -> None:
    with pytest.raises(InvalidRequest, match="cluster token"):
        WorkerServer(WorkerConfig(model="m", role="all", host="0.0.0.0"))


@pytest.mark.parametrize(
    ("role", "vision", "loads"),
    [
        ("encode", False, True),
        ("decode", True, False),
        ("prefill", True, True),
        ("prefill", False, False),
        ("all", True, True),
    ],
)
def test_who_loads_a_vision_tower(role: Any, vision: bool, loads: bool) -> None:
    assert WorkerConfig(model="m", role=role, vision=vision).loads_vision == loads
