"""`triptych serve`: a whole cluster on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.commands import options
from deploy.config import ConfigError


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="Directory or Hugging Face name. [dim](the bundled demo model)[/]"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="YAML file of the cluster, see docs/configuration.md.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            help="Port of the OpenAI API. [dim](8000)[/]",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    host: options.Host = None,
    api_key: options.ApiKey = None,
    cluster_token: options.ClusterToken = None,
    enable_scale_out: options.EnableScaleOut = None,
    protect_metrics: options.ProtectMetrics = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            help="[b]epd[/]: encode, prefill and decode apart; [b]e-pd[/]: prefill and decode in "
            "one; [b]all[/]: one worker does everything. [dim](epd)[/]",
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="STAGE=N", help="Replicas of a stage; may be repeated."),
    ] = None,
    served_model_name: options.ServedModelName = None,
    revision: options.Revision = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="auto, float32, float16 or bfloat16, for every worker.",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu or cuda, for every worker.", rich_help_panel=options.MODEL),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    kv_bytes: Annotated[
        int | None,
        typer.Option(help="Bytes of the KV cache of each worker.", rich_help_panel=options.LIMITS),
    ] = None,
    ec_bytes: options.EcBytes = None,
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain", help="Seconds that running requests get when told to stop. [dim](20)[/]"
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR. [dim](WARNING)[/]")
    ] = None,
) -> None:
    """Start a cluster on this machine and serve MODEL over the OpenAI API.

    Render, encode, prefill and decode replicas and the coordinator run as a Ray Serve application
    of their own Ray instance. Roles are spread over the GPUs that are visible; without any,
    everything runs on the CPU. Ctrl-C stops it.
    """
    from deploy.config import parse
    from deploy.environment import with_secrets

    values = options.read(config)
    given = {
        "model": model,
        "revision": revision,
        "served_model_name": served_model_name,
        "topology": topology,
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "cluster_token": cluster_token,
        "enable_scale_out": enable_scale_out,
        "protect_metrics": protect_metrics,
        "max_model_len": max_model_len,
        "drain_s": drain,
        "log_level": log_level.upper() if log_level else None,
    }
    values |= {key: value for key, value in given.items() if value is not None}
    parsed = with_secrets(parse(values), os.environ)
    stages = _per_stage(parsed.roles, replicas or [], dtype, device, kv_bytes, ec_bytes)
    for stage, keys in stages.items():
        values[stage] = {**(values.get(stage) or {}), **keys}
    parsed = with_secrets(parse(values), os.environ)

    from deploy.launcher import launch

    launch(parsed)


def _per_stage(
    roles: tuple[str, ...],
    replicas: list[str],
    dtype: str | None,
    device: str | None,
    kv_bytes: int | None,
    ec_bytes: int | None,
) -> dict[str, dict[str, Any]]:
    """Stage -> the keys that the options set in its section."""
    everywhere = {"dtype": dtype, "device": device, "kv_bytes": kv_bytes, "ec_bytes": ec_bytes}
    known = {key: value for key, value in everywhere.items() if value is not None}
    sections: dict[str, dict[str, Any]] = {role: dict(known) for role in roles if known}
    if ec_bytes is not None:
        sections["render"] = {"ec_bytes": ec_bytes}
    for entry in replicas:
        stage, _, count = entry.partition("=")
        if stage not in ("render", *roles, "coordinator") or not count.isdigit():
            raise ConfigError(
                f"--replicas {entry}: write STAGE=N with one of render, {', '.join(roles)}, "
                "coordinator",
                "replicas",
            )
        sections.setdefault(stage, {})["replicas"] = int(count)
    return sections
