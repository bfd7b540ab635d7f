"""`triptych version`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

_SHOWN = ("triptych", "torch", "transformers", "ray", "nixl", "vllm")


def version() -> None:
    """Print the version, and those of the libraries that matter in a bug report."""
    for name in _SHOWN:
        try:
            typer.echo(f"{name} {installed(name)}")
        except PackageNotFoundError:
            typer.echo(f"{name} not installed")
