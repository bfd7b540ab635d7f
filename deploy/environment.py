"""What the environment may set: secrets, which do not belong in files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deploy.config import ClusterConfig

API_KEY = ("TRIPTYCH_API_KEY", "VLLM_API_KEY")
CLUSTER_TOKEN = ("TRIPTYCH_CLUSTER_TOKEN",)
ENABLE_SCALE_OUT = ("TRIPTYCH_ENABLE_SCALE_OUT_ENDPOINTS", "VLLM_ENABLE_SCALE_OUT_ENDPOINTS")

_TRUE = frozenset({"1", "true", "yes", "on"})


def with_secrets(config: ClusterConfig, environment: Mapping[str, str]) -> ClusterConfig:
    """The configuration with what the environment sets; the configuration's own values stay."""
    changes: dict[str, object] = {}
    if not config.api_keys and (key := first(environment, API_KEY)):
        changes["api_keys"] = (key,)
    if not config.cluster_token and (token := first(environment, CLUSTER_TOKEN)):
        changes["cluster_token"] = token
    if not config.enable_scale_out and is_true(first(environment, ENABLE_SCALE_OUT)):
        changes["enable_scale_out"] = True
    return msgspec.structs.replace(config, **changes)


def first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of the variables that is set and not empty, or ""."""
    return next((environment[name] for name in names if environment.get(name)), "")


def is_true(value: str) -> bool:
    """Whether a variable switches something on."""
    return value.strip().lower() in _TRUE
