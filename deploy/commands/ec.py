"""`triptych ec`: tools for the EC connector."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.commands import options

if TYPE_CHECKING:
    from ec_connector.config import EcConfig

_CAPACITY_BYTES = 1 << 20

app = typer.Typer(
    help="Look at the EC connector, which moves pixels, embeddings and KV blocks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Peer = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]",
        help="Exchange of a peer (`ec.port` of its server); without it, look at this machine.",
        show_default=False,
    ),
]
Transports = Annotated[
    str,
    typer.Option("--transports", help="Comma-separated transports to use; all when empty."),
]


@app.command()
def doctor(
    peer: Peer = None,
    host: options.Host = None,
    cluster_token: options.ClusterToken = None,
) -> None:
    """Say which transports reach a peer and how fast, or work here, and why the others do not."""
    import asyncio

    _hush()
    config = _config(host, cluster_token, "")
    if peer is not None:
        from ec_connector.doctor import run, show

        examination = asyncio.run(run(*_address(peer), config))
        typer.echo(show(examination))
        if not any(finding.works for finding in examination.findings):
            raise typer.Exit(1)
        return
    working, missing = asyncio.run(_transports(config))
    for name in working:
        typer.echo(f"{name:<8} works")
    for name, reason in sorted(missing.items()):
        typer.echo(f"{name:<8} unavailable: {' '.join(reason.split())}")


@app.command()
def bench(
    peer: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Exchange of the peer.")],
    transports: Transports = "",
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="How long each size is repeated.")
    ] = 1.0,
    host: options.Host = None,
    cluster_token: options.ClusterToken = None,
) -> None:
    """Read probes of a peer in several sizes and numbers in flight, and print the throughput."""
    import asyncio

    from ec_connector.bench import run, show

    _hush()
    config = _config(host, cluster_token, transports)
    typer.echo(show(asyncio.run(run(*_address(peer), config, seconds=seconds))))


def _hush() -> None:
    """Keep UCX's remarks on variables that others set out of the answer."""
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")


def _config(host: str | None, cluster_token: str | None, transports: str) -> EcConfig:
    from ec_connector.config import EcConfig

    return EcConfig(
        host=host or "127.0.0.1",
        cluster_token=cluster_token or "",
        capacity_bytes=_CAPACITY_BYTES,
        transports=tuple(name for name in transports.split(",") if name),
    )


def _address(peer: str) -> tuple[str, int]:
    name, _, port = peer.rpartition(":")
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"{peer!r} is not HOST:PORT", param_hint="HOST:PORT")
    return name.strip("[]"), int(port)


async def _transports(config: EcConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    from ec_connector.connector import EcConnector

    connector = EcConnector(config, "doctor")
    await connector.start()
    try:
        return connector.transports, connector.unavailable
    finally:
        await connector.stop()
