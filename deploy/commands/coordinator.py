"""`triptych coordinator`: the front door as a server of its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from coordinator.membership.base import Membership as MembershipPlugin
from deploy.commands import options
from protocol.errors import InvalidRequest

KUBERNETES = "Kubernetes"


class Membership(StrEnum):
    """How the coordinator learns who is there."""

    STATIC = "static"
    KUBERNETES = "kubernetes"


def coordinator(
    model: Annotated[
        str,
        typer.Argument(
            help="Directory or Hugging Face name of the model whose tokens are turned into text; "
            "[b]demo[/] is the bundled one."
        ),
    ],
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replicas",
            metavar="ADDRESS",
            help="gRPC address host:port of a replica, or role=http://host:port of a server that "
            "is not ours; may be repeated.",
        ),
    ] = None,
    membership: Annotated[
        Membership,
        typer.Option(help="A fixed list (--replicas), or the EndpointSlices of a namespace."),
    ] = Membership.STATIC,
    kubernetes_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of the replicas' Services. [dim](the pod's own)[/]",
            rich_help_panel=KUBERNETES,
        ),
    ] = "",
    kubernetes_selector: Annotated[
        str,
        typer.Option(help="Label selector of the replicas' Services.", rich_help_panel=KUBERNETES),
    ] = "",
    kubernetes_api: Annotated[
        str,
        typer.Option(
            envvar="TRIPTYCH_KUBERNETES_API",
            help="URL of the API server, as `kubectl proxy` prints it. [dim](the pod's)[/]",
            rich_help_panel=KUBERNETES,
        ),
    ] = "",
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

    addresses = [entry for given in replicas or () for entry in given.split(",") if entry]
    if membership is Membership.STATIC and not addresses:
        raise InvalidRequest("name the replicas with --replicas host:port", "replicas")
    if membership is Membership.KUBERNETES and not kubernetes_selector:
        raise InvalidRequest(
            "name the replicas' Services with --kubernetes-selector", "kubernetes_selector"
        )
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
    merged = options.merged(config, given, CoordinatorConfig)
    if membership is Membership.KUBERNETES:
        from coordinator.membership.endpoint_slices import Access, EndpointSlices
        from coordinator.membership.kubernetes import KubernetesMembership

        access = Access.find(kubernetes_api, kubernetes_namespace)
        members: MembershipPlugin = KubernetesMembership(
            EndpointSlices(access, kubernetes_selector), merged.cluster_token
        )
    else:
        from coordinator.membership.static import StaticMembership

        members = StaticMembership(addresses, merged.cluster_token)
    run_coordinator(merged, model, revision or "", members, drain, log_level)
