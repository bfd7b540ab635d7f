"""The options of `triptych serve` become the cluster's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import launcher
from deploy.cli import app
from deploy.config import ClusterConfig


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[ClusterConfig]:
    """Configurations that would have been launched."""
    seen: list[ClusterConfig] = []
    monkeypatch.setattr(launcher, "launch", seen.append)
    return seen


def serve(*arguments: str, **environment: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], env=environment)
    assert result.exit_code == 0, (result.output, result.exception)


def test_nothing_said_is_the_demo(launched: list[ClusterConfig]) -> None:
    serve()
    assert launched == [ClusterConfig()]


def test_options_set_keys(launched: list[ClusterConfig]) -> None:
    serve(
        "owner/name", "--port", "9000", "--host", "0.0.0.0", "--topology", "e-pd",
        "--served-model-name", "m", "--api-key", "a", "--api-key", "b", "--enable-scale-out",
        "--max-model-len", "99", "--log-level", "info", "--drain", "3", "--revision", "r",
    )  # fmt: skip
    (config,) = launched
    assert config == ClusterConfig(
        model="owner/name",
        revision="r",
        port=9000,
        host="0.0.0.0",
        topology="e-pd",
        served_model_name="m",
        api_keys=("a", "b"),
        enable_scale_out=True,
        max_model_len=99,
        log_level="INFO",
        drain_s=3.0,
    )


def test_options_for_every_worker_reach_every_role(launched: list[ClusterConfig]) -> None:
    serve("--dtype", "bfloat16", "--device", "cpu", "--kv-bytes", "1000", "--ec-bytes", "2000")
    (config,) = launched
    for role in config.roles:
        stage = config.worker(role)
        assert (stage.dtype, stage.device, stage.kv_bytes, stage.ec_bytes) == (
            "bfloat16",
            "cpu",
            1000,
            2000,
        )
    assert config.render.ec_bytes == 2000


def test_replicas_of_any_stage(launched: list[ClusterConfig]) -> None:
    serve("--replicas", "encode=3", "--replicas", "coordinator=2", "--replicas", "render=4")
    (config,) = launched
    assert {name: stage.count for name, stage in config.stages()} == {
        "render": 4,
        "encode": 3,
        "prefill": 1,
        "decode": 1,
        "coordinator": 2,
    }


def test_an_option_overrides_the_file(launched: list[ClusterConfig], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "port: 1234\nserved_model_name: file\nencode: {replicas: 2, ec_bytes: 5}\n",
        encoding="utf-8",
    )
    serve("--config", str(file), "--port", "4321", "--replicas", "encode=7")
    (config,) = launched
    assert (config.port, config.served_model_name) == (4321, "file")
    assert (config.worker("encode").count, config.worker("encode").ec_bytes) == (7, 5)


def test_the_environment_sets_secrets_and_the_switch(launched: list[ClusterConfig]) -> None:
    serve(
        TRIPTYCH_API_KEY="k",
        TRIPTYCH_CLUSTER_TOKEN="t",
        VLLM_ENABLE_SCALE_OUT_ENDPOINTS="1",
    )
    (config,) = launched
    assert (config.api_keys, config.cluster_token, config.enable_scale_out) == (("k",), "t", True)


def test_the_key_of_vllm_is_honoured(launched: list[ClusterConfig]) -> None:
    serve(VLLM_API_KEY="theirs")
    assert launched[0].api_keys == ("theirs",)


def test_a_key_on_the_command_line_overrides_the_environment(
    launched: list[ClusterConfig],
) -> None:
    serve("--api-key", "flag", TRIPTYCH_API_KEY="env")
    assert launched[0].api_keys == ("flag",)
