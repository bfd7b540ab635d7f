"""Options that several commands share, and how they meet a configuration file.

A flag or its environment variable overrides the file, which overrides the default; an option that
is not given is None.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
import yaml

from deploy.config import ConfigError, convert
from deploy.environment import API_KEY, CLUSTER_TOKEN, ENABLE_SCALE_OUT

T = TypeVar("T")

NETWORK = "Network and keys"
MODEL = "Model"
LIMITS = "Limits"

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="YAML file with the keys of this server."),
]
Host: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Address to listen on. [dim](127.0.0.1)[/]", rich_help_panel=NETWORK),
]
ApiKey: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar=list(API_KEY),
        help="Key that clients must present; may be given several times.",
        rich_help_panel=NETWORK,
    ),
]
ClusterToken: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar=list(CLUSTER_TOKEN),
        help="Secret that the replicas share; needed beyond loopback.",
        rich_help_panel=NETWORK,
    ),
]
EnableScaleOut: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--enable-scale-out",
        envvar=list(ENABLE_SCALE_OUT),
        help="Offer the render, derender and generate endpoints.",
        rich_help_panel=NETWORK,
    ),
]
ProtectMetrics: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--protect-metrics", help="Ask for the API key on /metrics too.", rich_help_panel=NETWORK
    ),
]
ServedModelName: TypeAlias = Annotated[
    str | None,
    typer.Option(help="What clients call the model.", rich_help_panel=MODEL),
]
Revision: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit of a Hugging Face name.", rich_help_panel=MODEL),
]
MaxModelLen: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Longest prompt and answer together, in tokens.", rich_help_panel=LIMITS),
]
EcBytes: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Bytes of the store of pixels or embeddings.", rich_help_panel=LIMITS),
]
DrainS: TypeAlias = Annotated[
    float,
    typer.Option("--drain", help="Seconds that running requests get when told to stop."),
]
LogLevel: TypeAlias = Annotated[
    str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.", case_sensitive=False)
]


def merged(file: Path | None, given: dict[str, Any], schema: type[T]) -> T:
    """A server's configuration from its file and the options that were given.

    Args:
        file: the YAML file, if there is one.
        given: key -> value, None where the option was not given. A key `ec.x` is `x` in `ec`.
        schema: the configuration.

    Raises:
        ConfigError: names the key.
    """
    values = read(file)
    for key, value in given.items():
        if value is None or value == []:
            continue
        section, _, name = key.rpartition(".")
        target = values.setdefault(section, {}) if section else values
        if not isinstance(target, dict):
            raise ConfigError(f"{section}: must be a mapping", section)
        target[name] = value
    return convert(values, schema)


def read(file: Path | None) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: it cannot be read, or is something else.
    """
    if file is None:
        return {}
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold keys and values")
    return values
