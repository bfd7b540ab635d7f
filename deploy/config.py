"""The typed configuration of a cluster, as `triptych serve --config FILE` and Ray Serve read it.

Unknown keys and impossible combinations are refused with the path of the key. A stage's `server`
section holds keys of that server's own configuration; `deploy/wiring.py` puts the two together.
`docs/configuration.md` lists every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from protocol.errors import InvalidRequest
from protocol.replica import Role

T = TypeVar("T")

Topology = Literal["epd", "e-pd", "all"]

TOPOLOGIES: dict[Topology, tuple[Role, ...]] = {
    "epd": ("encode", "prefill", "decode"),
    "e-pd": ("encode", "prefill_decode"),
    "all": ("all",),
}
"""Topology -> the worker roles that it is made of, in the order of the data."""

DEMO_MODEL = "demo"
"""The `model` that means the bundled one."""

DEMO_MODEL_NAME = "triptych-demo"
"""What clients call the bundled one."""


def served_name(model: str, given: str) -> str:
    """What clients call a model: the name given, or the model as written."""
    return given or (DEMO_MODEL_NAME if model == DEMO_MODEL else model)


class ConfigError(InvalidRequest):
    """A configuration that cannot be used; `param` is the path of the key at fault."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every stage has: how many replicas, and what each may take of its machine.

    Attributes:
        replicas: how many processes; not together with `autoscaling_config`.
        num_cpus: CPU cores that Ray sets aside for each replica; 0, which is right on one
            machine, sets none aside.
        autoscaling_config: passed to Ray Serve (`min_replicas`, `max_replicas`, `policy`, ...);
            without a policy of its own, workers scale by their running and waiting requests.
        server: keys of the stage's own server, see below.
    """

    replicas: int | None = None
    num_cpus: float = 0.0
    autoscaling_config: dict[str, Any] | None = None
    server: dict[str, Any] = {}

    @property
    def count(self) -> int:
        """Replicas at the start, where they do not scale."""
        return 1 if self.replicas is None else self.replicas


class RenderStage(Stage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages and pictures to tokens and features; needs no GPU.

    Attributes:
        ec_bytes: bytes of the store that holds processed pixels until encode has fetched them.
    """

    ec_bytes: int | None = None


class WorkerStage(Stage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker role: encode, prefill, decode, prefill_decode or all.

    Attributes:
        num_gpus: GPUs of each replica, at most 1; a fraction shares one with other replicas.
            Unset: `triptych serve` spreads the roles over the GPUs that it sees, elsewhere 0.
        device: `auto` is `cuda` where the replica has a GPU and `cpu` elsewhere.
        dtype: of weights, activations, embeddings and KV; `auto` is the model's, and `float32` on
            a CPU. The same for every role.
        max_model_len: longest prompt and answer together in tokens.
        kv_bytes: bytes of the paged KV cache.
        ec_bytes: bytes of the store of embeddings.
        engine: `native`.
        tensor_parallel_size: must be 1.
    """

    num_gpus: float | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    max_model_len: int | None = None
    kv_bytes: int | None = None
    ec_bytes: int | None = None
    engine: Literal["native", "vllm"] = "native"
    tensor_parallel_size: int = 1


class CoordinatorStage(Stage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The front door: the OpenAI API and the pipeline behind it."""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster: one model, a topology, and a section per stage.

    Attributes:
        model: directory or Hugging Face name of the model; `demo` is the bundled one.
        revision: of a Hugging Face name.
        served_model_name: what clients call the model; unset: `model` as written.
        topology: `epd` (encode, prefill and decode apart), `e-pd` (prefill and decode in one) or
            `all` (everything in one worker).
        host: address that the OpenAI API listens on.
        port: of the OpenAI API.
        cluster_host: address that replicas listen on for each other; `auto` is each Ray node's
            own address, for a cluster of several.
        api_keys: keys that clients must present; none asks for none. TRIPTYCH_API_KEY adds one.
        cluster_token: secret that replicas share, needed where `cluster_host` is not loopback.
            TRIPTYCH_CLUSTER_TOKEN sets it; `triptych serve` makes one up.
        enable_scale_out: offer the render, derender and generate endpoints to clients.
        protect_metrics: ask for an API key on /metrics too.
        max_model_len: longest prompt and answer together in tokens, for every stage.
        drain_s: seconds that a replica may use to finish its streams when it is told to stop.
        log_level: of every process.
        render: the render stage.
        encode: workers that run the vision tower.
        prefill: workers that compute the prompt.
        decode: workers that stream the answer.
        prefill_decode: workers that do both.
        all: workers that do everything.
        coordinator: the coordinator stage.
    """

    model: str = DEMO_MODEL
    revision: str = ""
    served_model_name: str = ""
    topology: Topology = "epd"
    host: str = "127.0.0.1"
    port: int = 8000
    cluster_host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    cluster_token: str = ""
    enable_scale_out: bool = False
    protect_metrics: bool = False
    max_model_len: int | None = None
    drain_s: float = 20.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"
    render: RenderStage = RenderStage()
    encode: WorkerStage | None = None
    prefill: WorkerStage | None = None
    decode: WorkerStage | None = None
    prefill_decode: WorkerStage | None = None
    all: WorkerStage | None = None
    coordinator: CoordinatorStage = CoordinatorStage()

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return served_name(self.model, self.served_model_name)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The worker roles of the topology, in the order of the data."""
        return TOPOLOGIES[self.topology]

    def worker(self, role: Role) -> WorkerStage:
        """The section of a worker role, or the defaults where there is none."""
        stage: WorkerStage | None = getattr(self, role)
        return WorkerStage() if stage is None else stage

    def stages(self) -> Iterator[tuple[str, Stage]]:
        """Every stage of the topology with its name, in the order of the data."""
        yield "render", self.render
        for role in self.roles:
            yield role, self.worker(role)
        yield "coordinator", self.coordinator


def load(path: Path) -> ClusterConfig:
    """Read and check a YAML file.

    Raises:
        ConfigError: it cannot be read, or a key is not what it must be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    return parse({} if data is None else data)


def parse(data: object) -> ClusterConfig:
    """A checked configuration from plain data.

    Raises:
        ConfigError: `param` is the path of the key.
    """
    config = convert(data, ClusterConfig)
    check(config)
    return config


def check(config: ClusterConfig) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigError: says what is wrong, and what to write instead where that is clear.
    """
    for role in ("encode", "prefill", "decode", "prefill_decode", "all"):
        if getattr(config, role) is not None and role not in config.roles:
            raise ConfigError(
                f"{role}: topology {config.topology} has no {role} workers, only "
                f"{' and '.join(config.roles)}",
                role,
            )
    if not 0 < config.port <= 65535:
        raise ConfigError(f"port: {config.port} is not a port", "port")
    if config.drain_s < 0:
        raise ConfigError("drain_s: must not be negative", "drain_s")
    for name, stage in config.stages():
        _check_stage(name, stage)
    if len({config.worker(role).dtype for role in config.roles}) > 1:
        raise ConfigError(
            f"{config.roles[0]}.dtype: embeddings and KV blocks are handed over as they are, so "
            "every role needs the same",
            f"{config.roles[0]}.dtype",
        )
    from deploy import wiring

    wiring.check(config)


def convert(data: object, schema: type[T], path: str = "") -> T:
    """Plain data as a typed value.

    Args:
        data: as YAML gives it.
        schema: the struct.
        path: where `data` stands in the configuration.

    Raises:
        ConfigError: `param` is the path of the key.
    """
    try:
        return msgspec.convert(data, schema)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        key = ".".join(part for part in (path, where.rstrip("`").lstrip(".")) if part)
        text = text.replace("Object contains unknown field", "there is no key")
        if text.startswith("Invalid enum value") and (known := _choices(schema, where)):
            text += f": one of {', '.join(known)}"
        raise ConfigError(f"{key}: {text}" if key else text, key or None) from None


def _choices(schema: type[Any], path: str) -> list[str]:
    """The values that the key at a path may have, where they are listed."""
    kind: Any = schema
    for name in path.rstrip("`").lstrip(".").split("."):
        members = (kind, *get_args(kind))
        struct = next((m for m in members if hasattr(m, "__struct_fields__")), None)
        kind = None if struct is None else get_type_hints(struct).get(name)
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def _check_stage(name: str, stage: Stage) -> None:
    if stage.replicas is not None and stage.replicas < 1:
        raise _refusal(name, "replicas", f"a stage needs at least one, not {stage.replicas}")
    if stage.num_cpus < 0:
        raise _refusal(name, "num_cpus", "must not be negative")
    if stage.replicas is not None and stage.autoscaling_config is not None:
        raise _refusal(
            name, "autoscaling_config", "scaling decides how many replicas there are: drop replicas"
        )
    for key in ("max_model_len", "kv_bytes", "ec_bytes"):
        value = getattr(stage, key, None)
        if value is not None and value < 1:
            raise _refusal(name, key, f"must be positive, not {value}")
    if isinstance(stage, WorkerStage):
        _check_worker(name, stage)


def _check_worker(name: str, stage: WorkerStage) -> None:
    gpus = stage.num_gpus
    if stage.engine == "vllm":
        raise _refusal(name, "engine", "vLLM inside our worker is not built yet; use native")
    if stage.tensor_parallel_size != 1:
        raise _refusal(
            name,
            "tensor_parallel_size",
            "a replica runs on one GPU: a model that needs several cannot be served yet",
        )
    if gpus is not None and gpus < 0:
        raise _refusal(name, "num_gpus", "must not be negative")
    if gpus is not None and gpus > 1:
        raise _refusal(name, "num_gpus", f"a replica runs on one GPU, not {gpus:g}; raise replicas")
    if stage.device == "cuda" and gpus == 0:
        raise _refusal(name, "device", "cuda needs num_gpus above 0")
    if stage.device == "cpu" and gpus:
        raise _refusal(name, "device", f"cpu needs no GPU, but num_gpus is {gpus:g}")


def _refusal(stage: str, key: str, message: str) -> ConfigError:
    return ConfigError(f"{stage}.{key}: {message}", f"{stage}.{key}")
