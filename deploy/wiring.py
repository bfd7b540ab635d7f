"""From the cluster's configuration to the configuration of each server.

A stage's `server` section may set any key of that server's own configuration that the cluster's
does not set already.
"""

from __future__ import annotations

from typing import Any, TypeVar

from coordinator.config import CoordinatorConfig
from deploy.config import ClusterConfig, ConfigError, RenderStage, Stage, WorkerStage, convert
from protocol.errors import InvalidRequest
from protocol.replica import Role
from render.config import RenderConfig
from serving.auth import require_token_beyond_loopback
from workers.config import WorkerConfig

T = TypeVar("T")

SET_BY_CLUSTER: dict[str, str] = {
    "model": "the cluster's `model`",
    "revision": "the cluster's `revision`",
    "served_model_name": "the cluster's `served_model_name`",
    "role": "the stage's",
    "host": "the cluster's `host` or `cluster_host`",
    "port": "the cluster's `port`",
    "advertise_host": "the cluster's `cluster_host`",
    "cluster_token": "the cluster's `cluster_token`",
    "api_keys": "the cluster's `api_keys`",
    "enable_scale_out": "the cluster's `enable_scale_out`",
    "protect_metrics": "the cluster's `protect_metrics`",
    "max_model_len": "the stage's or the cluster's `max_model_len`",
    "device": "the stage's `device`",
    "dtype": "the stage's `dtype`",
    "kv_bytes": "the stage's `kv_bytes`",
}
"""Key of a server -> what it is in a cluster, so that a `server` section may not set it."""

EC_SET_BY_CLUSTER: dict[str, str] = {
    "host": "the cluster's `cluster_host`",
    "advertise_host": "the cluster's `cluster_host`",
    "cluster_token": "the cluster's `cluster_token`",
    "capacity_bytes": "the stage's `ec_bytes`",
}
"""The same for the `ec` section of a server."""


def check(config: ClusterConfig) -> None:
    """Refuse `server` sections that their servers would refuse.

    Raises:
        ConfigError: `param` is the path of the key.
    """
    render_config(config, config.cluster_host)
    for role in config.roles:
        worker_config(config, role, config.cluster_host)
    coordinator_config(config)
    if len({worker_config(config, role, "").block_size for role in config.roles}) > 1:
        raise ConfigError(
            f"{config.roles[0]}.server.block_size: KV blocks are handed over as they are, so every "
            "role needs the same",
            f"{config.roles[0]}.server.block_size",
        )


def require_token(config: ClusterConfig) -> None:
    """Refuse a cluster whose replicas listen beyond this machine without a token.

    Raises:
        InvalidRequest: names the option.
    """
    require_token_beyond_loopback(config.cluster_host, config.cluster_token)


def render_config(config: ClusterConfig, host: str) -> RenderConfig:
    """What a render replica is told; `host` is where it listens."""
    return _merged(
        "render",
        config.render,
        {
            "model": config.model,
            "served_model_name": config.model_name,
            "host": host,
            "ec": _ec(config, config.render, host),
            "cluster_token": config.cluster_token,
            "api_keys": config.api_keys,
            "protect_metrics": config.protect_metrics,
            "max_model_len": config.max_model_len,
        },
        RenderConfig,
    )


def worker_config(config: ClusterConfig, role: Role, host: str) -> WorkerConfig:
    """What a worker of a role is told; `host` is where it listens."""
    stage = config.worker(role)
    return _merged(
        role,
        stage,
        {
            "model": config.model,
            "revision": config.revision,
            "role": role,
            "served_model_name": config.model_name,
            "host": host,
            "ec": _ec(config, stage, host),
            "cluster_token": config.cluster_token,
            "api_keys": config.api_keys,
            "enable_scale_out": config.enable_scale_out,
            "protect_metrics": config.protect_metrics,
            "device": _device(stage),
            "dtype": stage.dtype,
            "max_model_len": stage.max_model_len or config.max_model_len,
            "kv_bytes": stage.kv_bytes,
        },
        WorkerConfig,
    )


def coordinator_config(config: ClusterConfig) -> CoordinatorConfig:
    """What a coordinator is told."""
    return _merged(
        "coordinator",
        config.coordinator,
        {
            "served_model_name": config.model_name,
            "host": config.host,
            "port": config.port,
            "api_keys": config.api_keys,
            "cluster_token": config.cluster_token,
            "enable_scale_out": config.enable_scale_out,
            "protect_metrics": config.protect_metrics,
        },
        CoordinatorConfig,
    )


def _device(stage: WorkerStage) -> str:
    if stage.device != "auto":
        return stage.device
    return "cuda" if stage.num_gpus else "cpu"


def _ec(config: ClusterConfig, stage: RenderStage | WorkerStage, host: str) -> dict[str, Any]:
    return _known(
        {
            "host": host,
            "cluster_token": config.cluster_token,
            "capacity_bytes": stage.ec_bytes,
        }
    )


def _merged(name: str, stage: Stage, ours: dict[str, Any], schema: type[T]) -> T:
    path = f"{name}.server"
    theirs = dict(stage.server)
    _refuse_twice(path, theirs, SET_BY_CLUSTER)
    merged = {**_known(ours), **theirs}
    ec = theirs.get("ec")
    if isinstance(ec, dict):
        _refuse_twice(f"{path}.ec", ec, EC_SET_BY_CLUSTER)
        merged["ec"] = {**ours["ec"], **ec} if "ec" in ours else ec
    try:
        return convert(merged, schema, path)
    except ConfigError:
        raise
    except InvalidRequest as error:
        raise ConfigError(f"{path}: {error.message}", path) from None


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that are left to the server's default."""
    return {key: value for key, value in values.items() if value is not None}


def _refuse_twice(path: str, section: dict[str, Any], ours: dict[str, str]) -> None:
    for key in section:
        if key in ours:
            raise ConfigError(
                f"{path}.{key}: cannot be set here, it is {ours[key]}", f"{path}.{key}"
            )
