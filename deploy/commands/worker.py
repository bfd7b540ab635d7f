"""`triptych worker`: one worker as a server of its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from deploy.commands import options


class WorkerRole(StrEnum):
    """What a worker does."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    PREFILL_DECODE = "prefill_decode"
    ALL = "all"


HTTP_PORTS = {
    WorkerRole.ENCODE: 8200,
    WorkerRole.PREFILL: 8300,
    WorkerRole.DECODE: 8400,
    WorkerRole.PREFILL_DECODE: 8300,
    WorkerRole.ALL: 8200,
}
GRPC_OFFSET = 1000


def worker(
    model: Annotated[
        str, typer.Argument(help="Directory or Hugging Face name; [b]demo[/] is the bundled one.")
    ],
    role: Annotated[WorkerRole, typer.Option("--role", "-r", help="What it does.")],
    config: options.Config = None,
    host: options.Host = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            help="HTTP port. [dim](encode and all 8200, prefill 8300, decode 8400)[/]",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            help="gRPC port, for the coordinator. [dim](the HTTP port + 1000)[/]",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    api_key: options.ApiKey = None,
    cluster_token: options.ClusterToken = None,
    enable_scale_out: options.EnableScaleOut = None,
    protect_metrics: options.ProtectMetrics = None,
    served_model_name: options.ServedModelName = None,
    revision: options.Revision = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [dim](cpu)[/]", rich_help_panel=options.MODEL)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="auto, float32, float16 or bfloat16. [dim](auto)[/]",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    vision: Annotated[
        bool | None,
        typer.Option(
            "--vision/--no-vision",
            help="Load the vision tower where the role has one. [dim](yes)[/]",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    kv_bytes: Annotated[
        int | None,
        typer.Option(help="Bytes of the KV cache.", rich_help_panel=options.LIMITS),
    ] = None,
    ec_bytes: options.EcBytes = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a KV block; the same on every replica.",
            rich_help_panel=options.LIMITS,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Most choices that run at once.", rich_help_panel=options.LIMITS),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens in a step.", rich_help_panel=options.LIMITS),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="CPU threads of the model. [dim](torch's choice)[/]",
            rich_help_panel=options.LIMITS,
        ),
    ] = None,
    drain: options.DrainS = 20.0,
    log_level: options.LogLevel = "INFO",
) -> None:
    """Serve one role of the engine over gRPC and, with --enable-scale-out, over HTTP."""
    from deploy.standalone import run_worker
    from workers.config import WorkerConfig

    http_port = HTTP_PORTS[role] if port is None else port
    given = {
        "model": model,
        "role": role.value,
        "host": host,
        "ec.host": host,
        "ec.cluster_token": cluster_token,
        "http_port": http_port,
        "grpc_port": (http_port and http_port + GRPC_OFFSET) if grpc_port is None else grpc_port,
        "api_keys": api_key,
        "cluster_token": cluster_token,
        "enable_scale_out": enable_scale_out,
        "protect_metrics": protect_metrics,
        "served_model_name": served_model_name,
        "revision": revision,
        "device": device,
        "dtype": dtype,
        "vision": vision,
        "max_model_len": max_model_len,
        "kv_bytes": kv_bytes,
        "ec.capacity_bytes": ec_bytes,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "threads": threads,
    }
    run_worker(options.merged(config, given, WorkerConfig), drain, log_level)
