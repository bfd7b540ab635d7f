"""The policy of worker stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig

from deploy.autoscaling import LOAD, by_load


def context(current: int, target: int, loads: dict[str, float] | None, each: float = 2.0) -> Any:
    return SimpleNamespace(
        current_num_replicas=current,
        target_num_replicas=target,
        aggregated_metrics=None if loads is None else {LOAD: loads},
        config=AutoscalingConfig(max_replicas=9, target_ongoing_requests=each),
    )


@pytest.mark.parametrize(
    ("loads", "each", "wanted"),
    [
        ({"a": 0.0}, 2.0, 1),
        ({"a": 4.0}, 2.0, 2),
        ({"a": 4.0, "b": 1.0}, 2.0, 3),
        ({"a": 4.0, "b": 1.0}, 8.0, 1),
    ],
)
def test_load_is_divided_by_what_each_should_have(
    loads: dict[str, float], each: float, wanted: int
) -> None:
    assert by_load(context(1, 1, loads, each))[0] == wanted


def test_no_metrics_are_not_taken_for_no_load() -> None:
    assert by_load(context(0, 3, None))[0] == 3
    assert by_load(context(2, 3, {}))[0] == 3
