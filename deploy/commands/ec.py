"""`triptych ec`: tools for the EC connector."""

from __future__ import annotations

import typer

from deploy.commands import options

_CAPACITY_BYTES = 1 << 20

app = typer.Typer(
    help="Look at the EC connector, which moves pixels, embeddings and KV blocks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _group() -> None:
    """Keeps `ec` a group while it has one command."""


@app.command()
def doctor(
    host: options.Host = None,
    cluster_token: options.ClusterToken = None,
) -> None:
    """Say which transports work on this machine, best first, and why the others do not."""
    import asyncio

    from ec_connector.config import EcConfig
    from ec_connector.connector import EcConnector

    config = EcConfig(
        host=host or "127.0.0.1",
        cluster_token=cluster_token or "",
        capacity_bytes=_CAPACITY_BYTES,
    )

    async def look() -> tuple[tuple[str, ...], dict[str, str]]:
        connector = EcConnector(config, "doctor")
        await connector.start()
        try:
            return connector.transports, connector.unavailable
        finally:
            await connector.stop()

    working, missing = asyncio.run(look())
    for name in working:
        typer.echo(f"{name:<8} works")
    for name, reason in sorted(missing.items()):
        typer.echo(f"{name:<8} unavailable: {' '.join(reason.split())}")
