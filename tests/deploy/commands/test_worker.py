"""The options of `triptych worker` become its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from deploy import standalone
from deploy.cli import app
from workers.config import WorkerConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been started."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(standalone, "run_worker", lambda *given: seen.append(given))
    return seen


def worker(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["worker", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize(
    ("role", "http", "grpc"),
    [
        ("encode", 8200, 9200),
        ("prefill", 8300, 9300),
        ("decode", 8400, 9400),
        ("prefill_decode", 8300, 9300),
        ("all", 8200, 9200),
    ],
)
def test_each_role_has_ports_of_its_own(
    started: list[tuple[Any, ...]], role: str, http: int, grpc: int
) -> None:
    worker("demo", "--role", role)
    config = started[0][0]
    assert (config.role, config.http_port, config.grpc_port) == (role, http, grpc)


def test_port_0_picks_both(started: list[tuple[Any, ...]]) -> None:
    worker("demo", "--role", "decode", "--port", "0")
    assert (started[0][0].http_port, started[0][0].grpc_port) == (0, 0)


def test_options_set_keys(started: list[tuple[Any, ...]]) -> None:
    worker(
        "m", "-r", "prefill", "--grpc-port", "5", "--no-vision", "--kv-bytes", "1000",
        "--ec-bytes", "2000", "--block-size", "8", "--enable-scale-out", "--api-key", "k",
        "--cluster-token", "t", "--threads", "2", "--dtype", "float32", "--drain", "1",
    )  # fmt: skip
    config, drain_s, level = started[0]
    expected = WorkerConfig(
        model="m",
        role="prefill",
        http_port=8300,
        grpc_port=5,
        vision=False,
        kv_bytes=1000,
        block_size=8,
        enable_scale_out=True,
        api_keys=("k",),
        cluster_token="t",
        threads=2,
        dtype="float32",
        ec=config.ec,
    )
    assert config == expected
    assert config.ec.capacity_bytes == 2000
    assert (drain_s, level) == (1.0, "INFO")
