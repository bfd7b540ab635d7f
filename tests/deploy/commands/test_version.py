"""`triptych version`."""

from __future__ import annotations

from typer.testing import CliRunner

from deploy.cli import app


def test_it_names_what_a_bug_report_needs() -> None:
    shown = CliRunner().invoke(app, ["version"])
    assert shown.exit_code == 0
    names = [line.split()[0] for line in shown.output.splitlines()]
    assert names == ["triptych", "torch", "transformers", "ray", "nixl", "vllm"]
