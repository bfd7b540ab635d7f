"""The options of `triptych coordinator` become its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.membership.static import StaticMembership
from deploy import standalone
from deploy.cli import app
from protocol.errors import InvalidRequest


def test_options_set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(standalone, "run_coordinator", lambda *given: seen.append(given))
    result = CliRunner().invoke(
        app,
        [
            "coordinator", "m", "--replicas", "h:1,h:2", "--replicas", "encode=http://h:3",
            "--port", "9", "--api-key", "k", "--request-timeout", "5", "--protect-metrics",
        ],
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    ((config, model, revision, membership, drain_s, level),) = seen
    assert (model, revision, drain_s, level) == ("m", "", 20.0, "INFO")
    assert isinstance(membership, StaticMembership)
    assert (config.port, config.api_keys, config.request_timeout_s) == (9, ("k",), 5.0)
    assert config.protect_metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--replicas host:port"),
        (["--membership", "kubernetes"], "--kubernetes-selector"),
    ],
)
def test_it_must_be_told_where_replicas_are(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["coordinator", "m", *arguments])
    assert isinstance(result.exception, InvalidRequest)
    assert message in result.exception.message
