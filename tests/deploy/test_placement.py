"""Roles are spread over the GPUs that are there, and never promise one twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.config import ClusterConfig, ConfigError, parse
from deploy.placement import place


def placed(gpus: int, **data: Any) -> dict[str, tuple[int, float]]:
    config = place(parse(data), gpus, 8)
    return {
        role: (config.worker(role).count, config.worker(role).num_gpus or 0.0)
        for role in config.roles
    }


def test_without_gpus_everything_runs_on_the_cpu_with_two_encoders() -> None:
    assert placed(0) == {"encode": (2, 0.0), "prefill": (1, 0.0), "decode": (1, 0.0)}


def test_one_gpu_is_shared() -> None:
    assert placed(1) == {"encode": (1, 0.2), "prefill": (1, 0.4), "decode": (1, 0.4)}
    assert placed(1, topology="all") == {"all": (1, 1.0)}


def test_two_gpus_give_decode_its_own() -> None:
    assert placed(2) == {"encode": (1, 0.33), "prefill": (1, 0.66), "decode": (1, 1.0)}


def test_more_gpus_go_to_the_roles_that_need_them() -> None:
    assert placed(3) == {"encode": (1, 1.0), "prefill": (1, 1.0), "decode": (1, 1.0)}
    assert placed(5) == {"encode": (1, 1.0), "prefill": (2, 1.0), "decode": (2, 1.0)}
    assert placed(8, topology="all") == {"all": (8, 1.0)}
    assert placed(4, topology="e-pd") == {"encode": (1, 1.0), "prefill_decode": (3, 1.0)}


def test_what_is_written_stays() -> None:
    assert placed(4, encode={"replicas": 2, "num_gpus": 0.5}) == {
        "encode": (2, 0.5),
        "prefill": (1, 1.0),
        "decode": (2, 1.0),
    }
    assert placed(2, encode={"device": "cpu"}) == {
        "encode": (2, 0.0),
        "prefill": (1, 1.0),
        "decode": (1, 1.0),
    }


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="asks for 2 GPUs and 1 are visible"):
        placed(1, decode={"replicas": 2, "num_gpus": 1})
    with pytest.raises(ConfigError, match=r"decode\.device: cuda, but no GPU is left"):
        placed(0, decode={"device": "cuda"})


def test_a_stage_that_scales_keeps_its_bounds() -> None:
    config = place(parse({"decode": {"autoscaling_config": {"min_replicas": 2}}}), 4, 8)
    decode = config.worker("decode")
    assert (decode.replicas, decode.num_gpus) == (None, 1.0)


@given(
    gpus=st.integers(0, 16),
    topology=st.sampled_from(["epd", "e-pd", "all"]),
    counts=st.lists(st.none() | st.integers(1, 5), min_size=3, max_size=3),
)
def test_no_gpu_is_promised_twice(gpus: int, topology: str, counts: list[int | None]) -> None:
    roles = parse({"topology": topology}).roles
    sections: dict[str, dict[str, int]] = {
        r: {"replicas": n} for r, n in zip(roles, counts, strict=False) if n is not None
    }
    config = place(parse({"topology": topology, **sections}), gpus, 8)
    total = sum(config.worker(r).count * (config.worker(r).num_gpus or 0.0) for r in config.roles)
    assert total <= gpus + 1e-9
    for role in config.roles:
        assert (config.worker(role).num_gpus or 0.0) <= 1.0
        assert gpus == 0 or config.worker(role).num_gpus, f"{role} got no share"
        if role in sections:
            assert config.worker(role).count == sections[role]["replicas"]


def test_workers_without_a_gpu_share_the_cores() -> None:
    config = place(parse({"decode": {"server": {"threads": 7}}}), 0, 16)
    assert config.worker("encode").server == {"threads": 4}
    assert config.worker("prefill").server == {"threads": 4}
    assert config.worker("decode").server == {"threads": 7}
    assert config.render.server == {"processes": 4}
    assert place(ClusterConfig(), 0, 2).worker("encode").server == {"threads": 1}
    assert place(ClusterConfig(), 3, 16).worker("encode").server == {}


def test_placing_changes_nothing_else() -> None:
    config = ClusterConfig(port=9000, cluster_token="t")
    after = place(config, 0, 2)
    assert (after.port, after.cluster_token, after.coordinator) == (9000, "t", config.coordinator)
