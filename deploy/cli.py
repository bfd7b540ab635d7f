"""The `triptych` command; a command's work is imported when it runs, so that help is instant."""

from __future__ import annotations

import sys

import typer

from deploy.commands import coordinator, ec, render, serve, version, worker
from protocol.errors import TriptychError

app = typer.Typer(
    name="triptych",
    help="Encode/prefill/decode serving of multimodal language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", rich_help_panel="Clusters")(serve.serve)
app.command("render", rich_help_panel="Single servers")(render.render)
app.command("worker", rich_help_panel="Single servers")(worker.worker)
app.command("coordinator", rich_help_panel="Single servers")(coordinator.coordinator)
app.add_typer(ec.app, name="ec", rich_help_panel="Tools")
app.command("version", rich_help_panel="Tools")(version.version)


def main() -> None:
    """Run the command line; an error of ours is one line and exit status 1."""
    try:
        app()
    except TriptychError as error:
        print(f"triptych: {error.message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("triptych: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
