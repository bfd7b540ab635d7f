"""`triptych ec`: tools for the EC connector."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Look at the EC connector: which transports this machine has.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _group() -> None:
    """Keeps `ec` a group while it has one command."""
