"""`triptych ec`."""

from __future__ import annotations

from typer.testing import CliRunner

from deploy.cli import app
from ec_connector.transports import known


def test_the_doctor_names_every_transport() -> None:
    shown = CliRunner().invoke(app, ["ec", "doctor"])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    lines = dict(line.split(maxsplit=1) for line in shown.output.splitlines())
    assert lines.keys() == known().keys()
    assert lines["tcp"] == "works"
    assert all(text == "works" or text.startswith("unavailable: ") for text in lines.values())


def test_ec_alone_is_help() -> None:
    assert "doctor" in CliRunner().invoke(app, ["ec"]).output
