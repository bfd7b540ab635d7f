"""`triptych coordinator`: the front door as a server of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.commands import options


def coordinator(
    model: Annotated[
        str,
        typer.Argument(
            help="Directory or Hugging Face name of the model whose tokens are turned into text; "
            "[b]demo[/] is the bundled one."
        ),
    ],
    replicas: Annotated[
        list[str],
        typer.Option(
            "--replicas",
            metavar="ADDRESS",
            help="gRPC address host:port of a replica, or role=http://host:port of a server that "
            "is not ours; may be repeated.",
        ),
    ],
    config: options.Config = None,
    host: options.Host = None,
    port: Annotated[
        int, typer.Option("--port", "-p", help="HTTP port.", rich_help_panel=options.NETWORK)
    ] = 8000,
    api_key: options.ApiKey = None,
    cluster_token: options.ClusterToken = None,
    enable_scale_out: options.EnableScaleOut = None,
    protect_metrics: options.ProtectMetrics = None,
    served_model_name: options.ServedModelName = None,
    revision: options.Revision = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds that a request may take. [dim](600)[/]", rich_help_panel=options.LIMITS
        ),
    ] = None,
    drain: options.DrainS = 20.0,
    log_level: options.LogLevel = "INFO",
) -> None:
    """Serve the OpenAI API over replicas that run elsewhere, without Ray."""
    from coordinator.config import CoordinatorConfig
    from deploy.standalone import run_coordinator

    addresses = [entry for given in replicas for entry in given.split(",") if entry]
    given = {
        "host": host,
        "port": port,
        "api_keys": api_key,
        "cluster_token": cluster_token,
        "enable_scale_out": enable_scale_out,
        "protect_metrics": protect_metrics,
        "served_model_name": served_model_name,
        "request_timeout_s": request_timeout,
    }
    run_coordinator(
        options.merged(config, given, CoordinatorConfig),
        model,
        revision or "",
        addresses,
        drain,
        log_level,
    )
