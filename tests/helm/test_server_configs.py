"""What the chart tells the servers is what they understand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import typer
import yaml
from click import Context
from ray.serve.schema import ServeDeploySchema

from coordinator.config import CoordinatorConfig
from deploy import wiring
from deploy.app import APPLICATION, COORDINATOR, STAGES_APPLICATION, options
from deploy.autoscaling import POLICY
from deploy.cli import app
from deploy.config import parse
from render.config import RenderConfig
from tests.helm.combinations import COMBINATIONS
from tests.helm.rendering import main_container, of_kind, pods, render, serve_config
from workers.config import WorkerConfig

STANDALONE = [name for name in COMBINATIONS if name.startswith("standalone")]
RAY = [name for name in COMBINATIONS if name.startswith("ray")]


def command_line(arguments: list[str]) -> dict[str, Any]:
    """The arguments as the command line reads them; raises where it refuses them."""
    group = typer.main.get_command(app)
    command = group.get_command(Context(group), arguments[0])  # type: ignore[attr-defined]
    context: Context = command.make_context(arguments[0], arguments[1:])
    return dict(context.params)


def server_config(name: str, manifests: list[Any]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(
        of_kind(manifests, "ConfigMap")[name]["data"]["config.yaml"]
    )
    return config


@pytest.mark.parametrize("name", STANDALONE)
def test_each_server_takes_its_arguments_and_its_file(name: str, tmp_path: Any) -> None:
    manifests = render(COMBINATIONS[name])
    for deployment, pod in pods(manifests):
        container = main_container(pod)
        if container["name"] == "check-picture":
            continue
        assert container["command"][0] == "triptych"
        file = tmp_path / "config.yaml"
        file.write_text("{}")
        arguments = [a.replace("/etc/triptych/config.yaml", str(file)) for a in container["args"]]
        taken = command_line([container["command"][1], *arguments])
        given = server_config(deployment, manifests)
        kind = container["command"][1]
        schema: Any = {
            "render": RenderConfig, "worker": WorkerConfig, "coordinator": CoordinatorConfig
        }[kind]  # fmt: skip
        own = {"model": taken["model"]} if kind != "coordinator" else {}
        if kind == "worker":
            own["role"] = taken["role"].value
        config = msgspec.convert({**given, **own}, schema)
        if kind != "coordinator":
            ports = {p["name"]: p["containerPort"] for p in container["ports"]}
            assert taken["port"] == ports["http"]
            assert taken["grpc_port"] == ports["grpc"]
            assert config.ec.port == ports["exchange"]
            assert taken["host"] == "$(POD_IP)"


@pytest.mark.parametrize("name", RAY)
def test_each_serve_application_takes_its_configuration(name: str) -> None:
    config = ServeDeploySchema.model_validate(serve_config(render(COMBINATIONS[name])))
    stages, front = config.applications
    for application, part in ((stages, "stages"), (front, "coordinator")):
        assert application.import_path == "deploy.app:build"
        assert application.args.keys() == {"config", "part"}
        assert application.args["part"] == part
        cluster = parse(application.args["config"])
        wiring.check(cluster)
    assert (stages.name, front.name) == (STAGES_APPLICATION, APPLICATION)
    assert [d.name for d in stages.deployments] == ["render", *cluster.roles]
    assert [d.name for d in front.deployments] == [COORDINATOR]


@pytest.mark.parametrize("name", ["ray-sized", "ray-scaled", "ray-e-pd"])
def test_the_deployments_that_serve_builds_are_those_whose_options_are_set(name: str) -> None:
    """Serve refuses options of a deployment that the application does not have."""
    for application in serve_config(render(COMBINATIONS[name]))["applications"]:
        cluster = parse(application["args"]["config"])
        for deployment in application["deployments"]:
            stage = dict(cluster.stages())[deployment["name"]]
            built = options(cluster, deployment["name"], stage)
            assert built.keys() - {"num_replicas"} >= {"ray_actor_options", "logging_config"}
            scaling = deployment.get("autoscaling_config")
            if scaling is not None:
                policy = scaling.get("policy")
                assert policy == (None if deployment["name"] == COORDINATOR else POLICY)


def test_stages_agree_on_what_they_must_agree_on() -> None:
    stages, _ = serve_config(render(COMBINATIONS["ray-sized"]))["applications"]
    cluster = parse(stages["args"]["config"])
    sizes = {wiring.worker_config(cluster, role, "").block_size for role in cluster.roles}
    assert sizes == {32}
    assert cluster.max_model_len == 8192
    assert cluster.served_model_name == "qwen"


def test_a_change_of_replicas_changes_no_arguments() -> None:
    """Serve restarts all replicas of an application whose arguments change."""

    def applications(replicas: int) -> dict[str, Any]:
        given = {**COMBINATIONS["ray-default"], "stages": {"encode": {"replicas": replicas}}}
        return {a["name"]: a for a in serve_config(render(given))["applications"]}

    before, after = applications(1), applications(3)
    assert before["triptych"] == after["triptych"]
    assert before["triptych-stages"]["args"] == after["triptych-stages"]["args"]
    assert before["triptych-stages"] != after["triptych-stages"]


def test_values_arrive() -> None:
    manifests = render(COMBINATIONS["standalone-sized"])
    decode = server_config("triptych-decode", manifests)
    assert decode["max_num_seqs"] == 128
    assert decode["max_num_batched_tokens"] == 8192
    assert decode["threads"] == 4
    assert decode["kv_bytes"] == 16 * 2**30
    assert server_config("triptych-encode", manifests)["ec"]["capacity_bytes"] == 4 * 2**30
    assert server_config("triptych-prefill", manifests)["vision"] is False
    rendered = server_config("triptych-render", manifests)
    assert rendered["media"]["allowed_domains"] == ["images.example.com"]
    assert rendered["processes"] == 4
