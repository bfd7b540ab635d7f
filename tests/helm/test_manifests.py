"""Whatever the values, the API server takes what the chart makes of them."""

from __future__ import annotations

from pathlib import Path

import helm_python
import pytest
import yaml

from tests.helm.combinations import COMBINATIONS
from tests.helm.rendering import CHART, VERSIONS, check, render


def test_there_are_combinations_enough() -> None:
    assert len(COMBINATIONS) >= 40


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_manifest_is_valid_in_both_versions_of_kubernetes(name: str) -> None:
    manifests = render(COMBINATIONS[name])
    for manifest in manifests:
        for version in VERSIONS:
            check(manifest, version)
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names)), "two objects of one name"
    assert {m["metadata"].get("namespace") for m in manifests} == {"prod"}


@pytest.mark.parametrize("path", sorted((CHART / "ci").glob("*-values.yaml")), ids=lambda p: p.stem)
def test_the_scenarios_that_the_chart_ships_are_valid(path: Path) -> None:
    for manifest in render(yaml.safe_load(path.read_text())):
        check(manifest, VERSIONS[-1])


@pytest.mark.parametrize("name", ["standalone-everything", "ray-everything"])
def test_the_linter_has_nothing_to_say(name: str) -> None:
    report = helm_python.lint(CHART, COMBINATIONS[name], strict=True)
    findings = [m for m in report["messages"] if "icon is recommended" not in m["error"]]
    assert (findings, report["errors"]) == ([], [])


def test_long_release_names_are_cut() -> None:
    manifests = render(COMBINATIONS["standalone-default"], name="a" * 53)
    assert max(len(m["metadata"]["name"]) for m in manifests) <= 63
