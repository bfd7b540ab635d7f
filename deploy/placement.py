"""Which role runs on which share of which GPU, and on how many cores.

Pure arithmetic for one machine: the launcher counts GPUs and cores, Ray hands the GPUs out.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from deploy.config import ClusterConfig, ConfigError, Stage, WorkerStage
from protocol.replica import Role

S = TypeVar("S", bound=Stage)

_WEIGHT: dict[Role, float] = {
    "encode": 1.0,
    "prefill": 2.0,
    "decode": 2.0,
    "prefill_decode": 3.0,
    "all": 1.0,
}
"""How much of the machine a role needs relative to the others, for pictures and short answers."""

_CPU_REPLICAS: dict[Role, int] = {"encode": 2}
"""Without GPUs: two encoders, so that the items of one request are encoded side by side."""


_CORES_PER_MEDIA_PROCESS = 4
"""Pictures are prepared in bursts, and the other stages live on the same cores."""


def place(config: ClusterConfig, gpus: int, cores: int) -> ClusterConfig:
    """The configuration with every worker's `replicas`, `num_gpus` and `threads` decided.

    What is written in the configuration stays; the roles that leave it open share the GPUs that
    remain: each its own where there are enough, else fractions of one. Workers without a GPU
    share the cores.

    Raises:
        ConfigError: it asks for more GPUs than there are.
    """
    stages = {role: config.worker(role) for role in config.roles}
    asked = sum(stage.num_gpus * _least(stage) for stage in stages.values() if stage.num_gpus)
    if asked > gpus:
        raise ConfigError(f"the configuration asks for {asked:g} GPUs and {gpus} are visible")
    open_roles = [
        role for role, stage in stages.items() if stage.num_gpus is None and stage.device != "cpu"
    ]
    if any(stages[role].device == "cuda" for role in open_roles) and gpus - asked <= 0:
        role = next(role for role in open_roles if stages[role].device == "cuda")
        raise ConfigError(f"{role}.device: cuda, but no GPU is left for it", f"{role}.device")
    shares = _share(open_roles, stages, int(gpus - asked))
    placed = {}
    for role, stage in stages.items():
        count, num_gpus = shares.get(role, (None, stage.num_gpus or 0.0))
        placed[role] = _decide(role, stage, count, num_gpus)
    on_cpu = sum(_least(stage) for stage in placed.values() if not stage.num_gpus)
    for role, stage in placed.items():
        if not stage.num_gpus:
            placed[role] = _with(stage, "threads", max(1, cores // on_cpu))
    render = _with(config.render, "processes", max(1, cores // _CORES_PER_MEDIA_PROCESS))
    return msgspec.structs.replace(config, render=render, **placed)


def _with(stage: S, key: str, value: int) -> S:
    """The stage with a key of its server, unless it is written."""
    return msgspec.structs.replace(stage, server={key: value, **stage.server})


def _decide(role: Role, stage: WorkerStage, count: int | None, num_gpus: float) -> WorkerStage:
    if stage.replicas is None and stage.autoscaling_config is None:
        default = _CPU_REPLICAS.get(role, 1) if num_gpus == 0 else 1
        stage = msgspec.structs.replace(stage, replicas=count or default)
    return msgspec.structs.replace(stage, num_gpus=num_gpus)


def _share(
    roles: list[Role], stages: dict[Role, WorkerStage], gpus: int
) -> dict[Role, tuple[int | None, float]]:
    """Role -> (replicas, GPUs of each). None leaves the replicas as they are."""
    if gpus == 0 or not roles:
        return {}
    least = {role: _least(stages[role]) for role in roles}
    if gpus < sum(least.values()):
        return {role: (None, share) for role, share in _fractions(roles, least, gpus).items()}
    counts = dict(least)
    grows = [role for role in roles if _may_grow(stages[role])]
    for _ in range(gpus - sum(least.values()) if grows else 0):
        # The next GPU goes to the role that has least for its weight.
        neediest = min(reversed(grows), key=lambda role: counts[role] / _WEIGHT[role])
        counts[neediest] += 1
    return {role: (counts[role], 1.0) for role in roles}


def _fractions(roles: list[Role], least: dict[Role, int], gpus: int) -> dict[Role, float]:
    """A fraction per replica such that no GPU is promised twice.

    The heaviest roles get a GPU each while that leaves one for the others, who share it.
    """
    rest = sorted(roles, key=lambda role: (_WEIGHT[role], roles.index(role)))
    shares: dict[Role, float] = {}
    while gpus > 1 and len(rest) > 1 and least[rest[-1]] <= gpus - 1:
        role = rest.pop()
        shares[role] = 1.0
        gpus -= least[role]
    if gpus > 1:  # many replicas of few roles: equal parts of one GPU each
        per_gpu = -(-sum(least[role] for role in rest) // gpus)
        return shares | dict.fromkeys(rest, _floor(1 / per_gpu))
    total = sum(_WEIGHT[role] * least[role] for role in rest)
    return shares | {role: _floor(_WEIGHT[role] / total) for role in rest}


def _floor(share: float) -> float:
    """Rounded down to hundredths, so that shares never add up to more than one GPU."""
    return int(share * 100 + 1e-9) / 100


def _least(stage: WorkerStage) -> int:
    if stage.autoscaling_config is not None:
        return max(1, int(stage.autoscaling_config.get("min_replicas", 1)))
    return stage.count


def _may_grow(stage: WorkerStage) -> bool:
    return stage.replicas is None and stage.autoscaling_config is None
