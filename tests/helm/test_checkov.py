"""checkov finds nothing in the rendered chart that is not justified in place.

It pins too much to share our environment, so it has one of its own, built once and reused.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest
import yaml

from tests.helm.combinations import COMBINATIONS
from tests.helm.rendering import Manifest, pods, render

CHECKED = ("standalone-default", "standalone-everything", "ray-default", "ray-everything")
PACKAGE = "checkov>=3.2,<4"


def command() -> Path:
    """checkov, installed where it is not yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "triptych" / "checkov"
    if not (folder / "bin" / "checkov").exists():
        venv.create(folder, with_pip=True)
        done = subprocess.run(
            [folder / "bin" / "pip", "install", PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"checkov cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "bin" / "checkov"


def manifests(name: str) -> list[Manifest]:
    """What is rendered, and Ray's pods as the operator would make them."""
    found = render(COMBINATIONS[name])
    services = [m for m in found if m["kind"] == "RayService"]
    for group, pod in pods(services):
        metadata = {**pod["metadata"], "name": f"ray-{group}", "namespace": "prod"}
        metadata["labels"] = {**metadata["labels"], "ray.io/is-ray-node": "yes"}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})
    return found


Findings = dict[str, dict[str, list[dict[str, str]]]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Combination -> failed and skipped checks. One run for all: most of it is checkov's start."""
    checkov = command()
    folder = tmp_path_factory.mktemp("rendered")
    for name in CHECKED:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(manifests(name)))
    arguments = ["--framework", "kubernetes", "--output", "json", "--compact", "--soft-fail"]
    done = subprocess.run(
        [checkov, "--directory", folder, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)["results"]
    return {
        name: {
            kind: [c for c in results[kind] if c["file_path"] == f"/{name}.yaml"]
            for kind in ("failed_checks", "skipped_checks", "passed_checks")
        }
        for name in CHECKED
    }


@pytest.mark.parametrize("name", CHECKED)
def test_every_finding_is_justified_in_place(name: str, report: Findings) -> None:
    failed = {
        f"{c['check_id']} {c['resource']}: {c['check_name']}" for c in report[name]["failed_checks"]
    }
    assert failed == set()
    assert len(report[name]["passed_checks"]) > 100, "checkov saw the manifests"


@pytest.mark.parametrize("name", CHECKED)
def test_every_justification_says_why_and_is_needed(name: str, report: Findings) -> None:
    found = render(COMBINATIONS[name])
    texts = [
        value
        for manifest in [*found, *(pod for _, pod in pods(found))]
        for key, value in manifest["metadata"].get("annotations", {}).items()
        if key.startswith("checkov.io/")
    ]
    assert texts
    assert all(len(text.partition("=")[2].split()) >= 5 for text in texts)
    skipped = {check["check_id"] for check in report[name]["skipped_checks"]}
    assert {text.partition("=")[0] for text in texts} == skipped
