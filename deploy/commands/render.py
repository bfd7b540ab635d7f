"""`triptych render`: the render stage as a server of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.commands import options

HTTP_PORT = 8100
GRPC_PORT = 9100


def render(
    model: Annotated[
        str, typer.Argument(help="Directory or Hugging Face name; [b]demo[/] is the bundled one.")
    ],
    config: options.Config = None,
    host: options.Host = None,
    port: Annotated[
        int, typer.Option("--port", "-p", help="HTTP port.", rich_help_panel=options.NETWORK)
    ] = HTTP_PORT,
    grpc_port: Annotated[
        int,
        typer.Option(help="gRPC port, for the coordinator.", rich_help_panel=options.NETWORK),
    ] = GRPC_PORT,
    api_key: options.ApiKey = None,
    cluster_token: options.ClusterToken = None,
    protect_metrics: options.ProtectMetrics = None,
    served_model_name: options.ServedModelName = None,
    revision: options.Revision = None,
    max_model_len: options.MaxModelLen = None,
    ec_bytes: options.EcBytes = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes that prepare pictures. [dim](one per core)[/]",
            rich_help_panel=options.LIMITS,
        ),
    ] = None,
    allowed_media_domain: Annotated[
        list[str] | None,
        typer.Option(
            help="Host that picture URLs may name; may be repeated. [dim](every public one)[/]",
            rich_help_panel=options.LIMITS,
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool | None,
        typer.Option(
            "--allow-private-addresses",
            help="Let picture URLs reach loopback and private addresses.",
            rich_help_panel=options.LIMITS,
        ),
    ] = None,
    drain: options.DrainS = 20.0,
    log_level: options.LogLevel = "INFO",
) -> None:
    """Serve render and derender: messages and pictures to tokens and features, tokens to text.

    Needs no GPU and loads no model. The endpoints are /v1/*/render and /v1/*/derender.
    """
    from deploy.standalone import run_render
    from render.config import RenderConfig

    given = {
        "model": model,
        "host": host,
        "ec.host": host,
        "ec.cluster_token": cluster_token,
        "http_port": port,
        "grpc_port": grpc_port,
        "api_keys": api_key,
        "cluster_token": cluster_token,
        "protect_metrics": protect_metrics,
        "served_model_name": served_model_name,
        "max_model_len": max_model_len,
        "processes": processes,
        "ec.capacity_bytes": ec_bytes,
        "media.allowed_domains": allowed_media_domain,
        "media.allow_private_addresses": allow_private_addresses,
    }
    run_render(options.merged(config, given, RenderConfig), revision or "", drain, log_level)
