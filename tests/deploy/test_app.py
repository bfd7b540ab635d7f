"""The Serve applications are composed from the configuration alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve import Application
from ray.serve.config import AutoscalingConfig

from deploy import app
from deploy.config import ClusterConfig, ConfigError, parse
from protocol.errors import InvalidRequest

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"


@pytest.mark.parametrize("part", [None, "stages", "coordinator"])
@pytest.mark.parametrize("config", [{}, {"topology": "all"}, str(EXAMPLES / "e-pd.yaml")])
def test_every_part_of_every_topology_builds(part: str | None, config: Any) -> None:
    args = {"config": config} if part is None else {"config": config, "part": part}
    assert isinstance(app.build(args), Application)


def test_the_example_for_serve_run_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parents[1])
    file = yaml.safe_load((EXAMPLES / "serve-epd.yaml").read_text(encoding="utf-8"))
    names = {entry["name"]: entry for entry in file["applications"]}
    assert set(names) == {app.STAGES_APPLICATION, app.APPLICATION}
    assert names[app.APPLICATION]["route_prefix"] == "/"
    for entry in names.values():
        assert entry["import_path"] == "deploy.app:build"
        assert isinstance(app.build(entry["args"]), Application)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"prat": "stages"}, "prat: there is no such argument"),
        ({"part": "encode"}, "neither stages nor coordinator"),
        ({"config": {"modle": "x"}}, "there is no key `modle`"),
        ({"config": "/no/file.yaml"}, "No such file"),
    ],
)
def test_wrong_arguments_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app.build(args)


def test_a_cluster_on_a_network_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"config": {"cluster_host": "auto"}, "part": "stages"}
    with pytest.raises(InvalidRequest, match="cluster token"):
        app.build(args)
    monkeypatch.setenv("TRIPTYCH_CLUSTER_TOKEN", "t")
    assert isinstance(app.build(args), Application)


def test_a_stage_asks_ray_for_what_its_section_says() -> None:
    config = parse({"decode": {"replicas": 3, "num_gpus": 0.5, "num_cpus": 2}, "drain_s": 7})
    options = app.options(config, "decode", config.worker("decode"))
    assert options["num_replicas"] == 3
    assert options["ray_actor_options"] == {"num_cpus": 2.0, "num_gpus": 0.5}
    assert options["graceful_shutdown_timeout_s"] > 7 + 2


def scaling(stage: str, given: dict[str, Any]) -> AutoscalingConfig:
    config = parse({stage: {"autoscaling_config": given}})
    section = config.coordinator if stage == "coordinator" else config.worker("encode")
    found: AutoscalingConfig = app.options(config, stage, section)["autoscaling_config"]
    return found


def test_scaling_is_passed_on_with_our_policy_unless_it_has_one() -> None:
    passed = scaling("encode", {"max_replicas": 4, "upscale_delay_s": 1})
    assert (passed.max_replicas, passed.upscale_delay_s) == (4, 1)
    assert passed.policy.policy_function == "deploy.autoscaling:by_load"
    own = {"max_replicas": 4, "policy": {"policy_function": "deploy.environment:is_true"}}
    assert scaling("encode", own).policy.policy_function == "deploy.environment:is_true"


def test_coordinators_scale_by_the_requests_that_serve_counts() -> None:
    passed = scaling("coordinator", {"max_replicas": 4})
    assert not str(passed.policy.policy_function).startswith("deploy.")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"max_replcas": 4}, "encode.autoscaling_config.max_replcas"),
        ({"max_replicas": 0}, "encode.autoscaling_config"),
        ({"min_replicas": 3, "max_replicas": 2}, "encode.autoscaling_config"),
    ],
)
def test_scaling_that_serve_would_refuse_or_ignore_is_refused(
    given: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        scaling("encode", given)
    assert refused.value.param == path
    assert "\n" not in refused.value.message


def test_no_secret_is_in_a_name() -> None:
    config = ClusterConfig(api_keys=("s3cret",), cluster_token="t0ken")
    assert "s3cret" not in repr(app.stages(config))
