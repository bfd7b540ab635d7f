"""Medians, tables, checks and the written document."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.report import Check, exit_status, median, quantile, table, write


def test_quantiles_of_few_values() -> None:
    assert quantile([5, 1, 3], 0.5) == 3
    assert quantile([5, 1, 3], 0.9) == 5
    assert quantile([5, 1, 3], 0.0) == 1
    assert median([4, 1]) == 2.5


def test_nothing_has_no_median() -> None:
    assert math.isnan(median([]))
    assert math.isnan(quantile([], 0.9))


def test_columns_are_aligned() -> None:
    assert table(["a", "bb"], [["xyz", "1"], ["q", "1000"]]) == "a      bb\nxyz     1\nq    1000"


@pytest.mark.parametrize(
    ("check", "kept"),
    [
        (Check("x", 0.7, 0.7), True),
        (Check("x", 0.69, 0.7), False),
        (Check("x", 1, 0, at_least=False), False),
        (Check("x", 0, 0, at_least=False), True),
        (Check("x", math.nan, 0.7), False),
        (Check("x", math.nan, 0.7, at_least=False), False),
    ],
)
def test_a_bound_is_kept_or_not(check: Check, kept: bool) -> None:
    assert check.kept is kept


def test_a_bound_that_is_not_kept_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("speed", 0.5, 0.7), Check("size", 3, 2)]
    assert exit_status(checks, enforced=True) == 1
    assert capsys.readouterr().err == "FAILED: speed is 0.500, must be >= 0.7\n"
    assert exit_status(checks, enforced=False) == 0
    assert exit_status([Check("size", 3, 2)], enforced=True) == 0


def test_the_document_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    write(file, "pipeline", {"rounds": 1}, {"a": [1]}, [Check("x", 1, 2)])
    document = json.loads(file.read_text())
    assert document["benchmark"] == "pipeline"
    assert document["figures"] == {"a": [1]}
    assert document["checks"] == [{"figure": "x", "value": 1, "bound": 2, "kept": False}]
    assert document["machine"]["cpus"] >= 1
