"""The variables of a private Ray Serve instance."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from deploy.ray_environment import temporary_root, variables


def test_instances_share_no_port(tmp_path: Path) -> None:
    one, two = variables(tmp_path / "1"), variables(tmp_path / "2")
    ports = [value for env in (one, two) for name, value in env.items() if name.endswith("_PORT")]
    single = [p for p in ports if p]
    assert len(single) == 16
    assert len({v for n, v in one.items() if n.endswith("_PORT")}) == 8


def test_the_proxy_writes_into_its_directory_alone(tmp_path: Path) -> None:
    paths = {v for n, v in variables(tmp_path).items() if v.startswith("/")}
    assert len(paths) == 5
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)


def test_values_are_those_that_let_workers_drain(tmp_path: Path) -> None:
    found = variables(tmp_path)
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert float(found["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"]) <= 2
    assert int(found["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) >= 3600


def test_a_long_temporary_directory_is_not_used_for_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "long" * 20)
    assert temporary_root() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert temporary_root() == "/var/tmp"
