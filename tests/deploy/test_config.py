"""The cluster's configuration refuses what cannot work, with the path of the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.config import ClusterConfig, ConfigError, load, parse

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"


def test_nothing_written_is_the_demo_model_on_split_pools() -> None:
    config = parse({})
    assert config == ClusterConfig()
    assert config.roles == ("encode", "prefill", "decode")
    assert config.model_name == "triptych-demo"
    assert [name for name, _ in config.stages()] == [
        "render",
        "encode",
        "prefill",
        "decode",
        "coordinator",
    ]


@pytest.mark.parametrize(
    ("topology", "roles"),
    [
        ("epd", ("encode", "prefill", "decode")),
        ("e-pd", ("encode", "prefill_decode")),
        ("all", ("all",)),
    ],
)
def test_each_topology_has_an_annotated_example(topology: str, roles: tuple[str, ...]) -> None:
    config = load(EXAMPLES / f"{topology}.yaml")
    assert config.topology == topology
    assert config.roles == roles


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"modle": "demo"}, "", "there is no key `modle`"),
    ({"port": "8000"}, "port", "Expected `int`"),
    ({"port": 70000}, "port", "not a port"),
    ({"topology": "pd"}, "topology", "'pd': one of epd, e-pd, all"),
    ({"encode": {"replica": 2}}, "encode", "there is no key `replica`"),
    ({"encode": {"replicas": 0}}, "encode.replicas", "at least one"),
    ({"encode": {"replicas": True}}, "encode.replicas", "Expected `int | null`"),
    ({"encode": {"num_cpus": -1.0}}, "encode.num_cpus", "negative"),
    ({"encode": {"num_gpus": -0.5}}, "encode.num_gpus", "negative"),
    ({"encode": {"num_gpus": 2}}, "encode.num_gpus", "raise replicas"),
    ({"decode": {"device": "cuda", "num_gpus": 0}}, "decode.device", "num_gpus above 0"),
    ({"decode": {"device": "cpu", "num_gpus": 1}}, "decode.device", "needs no GPU"),
    ({"decode": {"engine": "vllm"}}, "decode.engine", "use native"),
    ({"prefill": {"tensor_parallel_size": 2}}, "prefill.tensor_parallel_size", "one GPU"),
    ({"prefill": {"kv_bytes": 0}}, "prefill.kv_bytes", "positive"),
    ({"render": {"ec_bytes": -1}}, "render.ec_bytes", "positive"),
    (
        {"decode": {"dtype": "int8"}},
        "decode.dtype",
        "'int8': one of auto, float32, float16, bfloat16",
    ),
    ({"decode": {"dtype": "float16"}}, "encode.dtype", "every role needs the same"),
    ({"all": {}}, "all", "topology epd has no all workers, only encode and prefill and decode"),
    ({"topology": "all", "decode": {}}, "decode", "topology all has no decode workers"),
    ({"drain_s": -1}, "drain_s", "negative"),
    (
        {"encode": {"replicas": 2, "autoscaling_config": {"max_replicas": 3}}},
        "encode.autoscaling_config",
        "drop replicas",
    ),
    ({"encode": {"server": {"treads": 1}}}, "encode.server", "there is no key `treads`"),
    ({"encode": {"server": {"threads": "x"}}}, "encode.server.threads", "Expected `int`"),
    ({"encode": {"server": {"model": "x"}}}, "encode.server.model", "the cluster's `model`"),
    ({"encode": {"server": {"max_num_seqs": 0}}}, "encode.server", "at least 1"),
    (
        {"render": {"server": {"media": {"max_pixels": 1}}}},
        "render.server.media",
        "there is no key `max_pixels`",
    ),
    (
        {"render": {"server": {"ec": {"capacity_bytes": 1}}}},
        "render.server.ec.capacity_bytes",
        "the stage's `ec_bytes`",
    ),
    ({"decode": {"server": {"block_size": 32}}}, "encode.server.block_size", "the same"),
    ({"coordinator": {"server": {"port": 1}}}, "coordinator.server.port", "the cluster's `port`"),
    ([1, 2], "", "Expected `object`"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("data", "path", "message"), REFUSED)
def test_what_cannot_work_is_refused_with_its_path(
    data: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(data)
    assert (refused.value.param or "") == path
    assert message in refused.value.message
    assert refused.value.message.startswith(path)
    assert "\n" not in refused.value.message


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_a_file_that_is_not_yaml_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("a: [1\nb: 2", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not YAML") as refused:
        load(file)
    assert "\n" not in refused.value.message


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n", encoding="utf-8")
    assert load(file) == ClusterConfig()
