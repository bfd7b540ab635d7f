"""Every server gets what the cluster's configuration says for it."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.config import CoordinatorConfig
from deploy import wiring
from deploy.config import ClusterConfig, parse
from ec_connector.config import EcConfig
from protocol.errors import InvalidRequest
from render.config import RenderConfig
from workers.config import WorkerConfig


def test_secrets_and_names_reach_every_server() -> None:
    config = parse(
        {
            "model": "owner/name",
            "served_model_name": "m",
            "api_keys": ["k"],
            "cluster_token": "t",
            "enable_scale_out": True,
            "max_model_len": 512,
        }
    )
    render = wiring.render_config(config, "127.0.0.1")
    worker = wiring.worker_config(config, "prefill", "127.0.0.1")
    coordinator = wiring.coordinator_config(config)
    for server in (render, worker, coordinator):
        assert server.served_model_name == "m"
        assert server.api_keys == ("k",)
        assert server.cluster_token == "t"
    assert render.ec.cluster_token == worker.ec.cluster_token == "t"
    assert worker.enable_scale_out
    assert coordinator.enable_scale_out
    assert render.max_model_len == worker.max_model_len == 512


def test_a_stage_overrides_the_cluster_and_its_server_section_adds() -> None:
    config = parse(
        {
            "max_model_len": 512,
            "decode": {
                "max_model_len": 256,
                "kv_bytes": 1 << 20,
                "ec_bytes": 1 << 21,
                "server": {"threads": 3, "ec": {"lease_s": 5.0}},
            },
        }
    )
    decode = wiring.worker_config(config, "decode", "10.0.0.1")
    assert (decode.max_model_len, decode.kv_bytes, decode.threads) == (256, 1 << 20, 3)
    assert (decode.ec.capacity_bytes, decode.ec.lease_s, decode.ec.host) == (
        1 << 21,
        5.0,
        "10.0.0.1",
    )


def test_what_is_not_written_is_left_to_the_server() -> None:
    config = ClusterConfig()
    assert wiring.render_config(config, "127.0.0.1") == RenderConfig(
        model="demo", served_model_name="triptych-demo"
    )
    assert wiring.worker_config(config, "encode", "127.0.0.1") == WorkerConfig(
        model="demo", role="encode", served_model_name="triptych-demo"
    )
    assert wiring.coordinator_config(config) == CoordinatorConfig(served_model_name="triptych-demo")


@pytest.mark.parametrize(
    ("stage", "device"),
    [
        ({}, "cpu"),
        ({"num_gpus": 0.5}, "cuda"),
        ({"num_gpus": 1, "device": "cuda"}, "cuda"),
        ({"device": "cpu"}, "cpu"),
    ],
)
def test_auto_is_cuda_where_there_is_a_gpu(stage: dict[str, object], device: str) -> None:
    config = parse({"encode": stage})
    assert wiring.worker_config(config, "encode", "127.0.0.1").device == device


def test_beyond_loopback_a_token_is_needed() -> None:
    wiring.require_token(ClusterConfig())
    wiring.require_token(ClusterConfig(cluster_host="auto", cluster_token="t"))
    with pytest.raises(InvalidRequest, match="TRIPTYCH_CLUSTER_TOKEN"):
        wiring.require_token(ClusterConfig(cluster_host="auto"))


def test_the_lists_of_keys_that_the_cluster_sets_name_real_keys() -> None:
    servers = (RenderConfig, WorkerConfig, CoordinatorConfig)
    known = {field.name for server in servers for field in msgspec.structs.fields(server)}
    assert wiring.SET_BY_CLUSTER.keys() <= known
    assert wiring.EC_SET_BY_CLUSTER.keys() <= {f.name for f in msgspec.structs.fields(EcConfig)}
