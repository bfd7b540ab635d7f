"""deploy/kubernetes is the chart's mode ray without Helm, and stays in step with it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from deploy.config import parse
from tests.helm.rendering import ROOT, VERSIONS, check

FOLDER = ROOT / "deploy" / "kubernetes"


def documents(name: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((FOLDER / name).read_text()) if d]


def test_they_are_in_step_with_the_chart() -> None:
    done = subprocess.run(
        [sys.executable, "helm/plain_manifests.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["rayservice.yaml", "raycluster.yaml"])
def test_they_are_valid_and_fit_any_namespace(name: str) -> None:
    for document in documents(name):
        assert "namespace" not in document["metadata"]
        for version in VERSIONS:
            check(document, version)


def test_the_cluster_and_its_serve_config_are_those_of_the_service() -> None:
    (service,) = [d for d in documents("rayservice.yaml") if d["kind"] == "RayService"]
    (cluster,) = [d for d in documents("raycluster.yaml") if d["kind"] == "RayCluster"]
    assert cluster["spec"] == service["spec"]["rayClusterConfig"]
    (serve,) = documents("serve-config.yaml")
    assert serve == yaml.safe_load(service["spec"]["serveConfigV2"])
    for application in serve["applications"]:
        parse(application["args"]["config"])


def test_they_hold_no_secret() -> None:
    assert all(d["kind"] != "Secret" for d in documents("rayservice.yaml"))
