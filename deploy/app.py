"""Composition root of the Ray Serve applications.

`build` is for a Serve config file (`import_path: deploy.app:build`), `stages` and `coordinator`
for `triptych serve`. They are two applications, so that workers and coordinators can be updated
one without the other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from deploy import wiring
from deploy.autoscaling import POLICY
from deploy.config import (
    ClusterConfig,
    ConfigError,
    RenderStage,
    Stage,
    WorkerStage,
    load,
    parse,
)
from deploy.deployments import CoordinatorReplica, StageReplica, StagesRoot
from deploy.environment import with_secrets
from protocol.replica import Role

COORDINATOR = "coordinator"
APPLICATION = "triptych"
STAGES_APPLICATION = "triptych-stages"

MAX_ONGOING_REQUESTS = 10_000
"""Requests that Serve lets into a coordinator; the coordinator's own admission is far below."""

_STOP_MARGIN_S = 5.0
_ROUTER_STATS_S = 10.0


def build(args: dict[str, Any]) -> Application:
    """An application from the `args` of a Serve config file.

    Args:
        args: `config`, the cluster's configuration as a mapping or as the path of a YAML file, and
            `part`: `stages` for render and the workers, `coordinator` for the coordinator. Without
            `part` the application holds everything.

    Raises:
        ConfigError: names the key.
    """
    unknown = sorted(args.keys() - {"config", "part"})
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such argument, only config and part")
    given = args.get("config", {})
    config = load(Path(given)) if isinstance(given, str) else parse(given)
    config = with_secrets(config, os.environ)
    wiring.require_token(config)
    match args.get("part"):
        case None:
            return _coordinator(config).bind(msgspec.to_builtins(config), _bound(config))
        case "stages":
            return stages(config)
        case "coordinator":
            return coordinator(config)
        case part:
            raise ConfigError(f"part: {part} is neither stages nor coordinator", "part")


def stages(config: ClusterConfig) -> Application:
    """Render and the workers, to be named `triptych-stages`."""
    root = serve.deployment(
        StagesRoot, name="stages", ray_actor_options={"num_cpus": 0}, num_replicas=1
    )
    return root.bind(_bound(config))


def coordinator(config: ClusterConfig) -> Application:
    """The coordinators of the stages in `triptych-stages`."""
    sources = {role: (role, STAGES_APPLICATION) for role in _stage_roles(config)}
    return _coordinator(config).bind(msgspec.to_builtins(config), sources)


def _bound(config: ClusterConfig) -> dict[Role, Application]:
    data = msgspec.to_builtins(config)
    return {role: _stage(config, role).bind(data, role) for role in _stage_roles(config)}


def _stage_roles(config: ClusterConfig) -> tuple[Role, ...]:
    return ("render", *config.roles)


def _stage(config: ClusterConfig, role: Role) -> serve.Deployment:
    stage = config.render if role == "render" else config.worker(role)
    return serve.deployment(
        StageReplica,
        name=role,
        request_router_config=RequestRouterConfig(
            request_router_class="deploy.membership:MemberRouter",
            request_router_kwargs={"role": role},
            request_routing_stats_period_s=_ROUTER_STATS_S,
        ),
        **options(config, role, stage),
    )


def _coordinator(config: ClusterConfig) -> serve.Deployment:
    return serve.deployment(
        CoordinatorReplica,
        name=COORDINATOR,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        **options(config, COORDINATOR, config.coordinator),
    )


def options(config: ClusterConfig, name: str, stage: Stage) -> dict[str, Any]:
    """What a stage asks Ray and Serve for.

    Raises:
        ConfigError: Serve would refuse or ignore a key of `autoscaling_config`.
    """
    found: dict[str, Any] = {
        "ray_actor_options": {
            "num_cpus": stage.num_cpus,
            "num_gpus": (stage.num_gpus or 0.0) if isinstance(stage, WorkerStage) else 0.0,
        },
        "health_check_period_s": 1.0,
        "health_check_timeout_s": 10.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.drain_s + _STOP_MARGIN_S,
        "max_constructor_retry_count": 2,
        "logging_config": {"log_level": config.log_level, "enable_access_log": False},
    }
    if stage.autoscaling_config is None:
        found["num_replicas"] = stage.count
    else:
        found["autoscaling_config"] = _scaling(name, stage, stage.autoscaling_config)
    return found


def _scaling(name: str, stage: Stage, given: dict[str, Any]) -> AutoscalingConfig:
    path = f"{name}.autoscaling_config"
    for key in given:
        if key not in AutoscalingConfig.model_fields:  # Serve would ignore it
            raise ConfigError(f"{path}.{key}: Ray Serve has no such key", f"{path}.{key}")
    if isinstance(stage, RenderStage | WorkerStage):
        given = {"policy": POLICY, **given}
    try:
        return AutoscalingConfig(**given)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: {reason}", path) from None
