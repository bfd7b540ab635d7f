"""The options of `triptych render` become its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from deploy import standalone
from deploy.cli import app


def test_options_set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(standalone, "run_render", lambda *given: seen.append(given))
    result = CliRunner().invoke(
        app,
        [
            "render", "m", "--port", "1", "--grpc-port", "2", "--processes", "3",
            "--allowed-media-domain", "a.example", "--allowed-media-domain", "b.example",
            "--allow-private-addresses", "--served-model-name", "n", "--revision", "r",
        ],
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    ((config, revision, drain_s, level),) = seen
    assert (config.model, config.http_port, config.grpc_port, config.processes) == ("m", 1, 2, 3)
    assert config.media.allowed_domains == ("a.example", "b.example")
    assert config.media.allow_private_addresses
    assert (config.served_model_name, revision, drain_s, level) == ("n", "r", 20.0, "INFO")


def test_its_ports_are_those_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(standalone, "run_render", lambda *given: seen.append(given))
    assert CliRunner().invoke(app, ["render", "demo"]).exit_code == 0
    assert (seen[0][0].http_port, seen[0][0].grpc_port) == (8100, 9100)
