"""Rules, dashboard and scalers name only metrics and labels that we export."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import telemetry
from protocol.errors import TriptychError
from tests.helm.combinations import COMBINATIONS
from tests.helm.rendering import CHART, of_kind, render

SCRAPED = {
    "namespace",
    "pod",
    "container",
    "le",
    "app_kubernetes_io_component",
    "app_kubernetes_io_instance",
}
"""Labels that a scrape adds, by Prometheus itself and by the monitors' podTargetLabels."""

_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
_NAME = re.compile(r"\btriptych_[a-z0-9_]+\b")
_LABEL = re.compile(r'([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*"')
_BY = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """Sample name -> labels, of every metric in telemetry/."""
    registry = CollectorRegistry()
    for module_info in pkgutil.iter_modules(telemetry.__path__):
        module = importlib.import_module(f"telemetry.{module_info.name}")
        for name, made in vars(module).items():
            if (
                name.endswith("Metrics")
                and inspect.isclass(made)
                and made.__module__ == module.__name__
            ):
                made(registry)
    found: dict[str, set[str]] = {}
    for collector in set(registry._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        kind = getattr(collector, "_type", "")
        (metric,) = collector.describe()
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            kind, ("",)
        )
        for suffix in suffixes:
            found[metric.name + suffix] = labels
    return found


EXPORTED = exported()


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from strings(child)


def wrong(expression: str) -> list[str]:
    """What is wrong with the names in a query."""
    faults = [f"no metric {name}" for name in _NAME.findall(expression) if name not in EXPORTED]
    labels = set(SCRAPED)
    for metric, matchers in _SELECTOR.findall(expression):
        known = EXPORTED.get(metric, set()) | SCRAPED
        labels |= known
        faults += [
            f"{metric} has no label {key}" for key in _LABEL.findall(matchers) if key not in known
        ]
    for names in _BY.findall(expression):
        faults += [f"no label {key}" for key in re.split(r",\s*", names) if key not in labels]
    return faults


def expressions(combination: str) -> list[str]:
    manifests = render(COMBINATIONS[combination])
    found = []
    for rule in of_kind(manifests, "PrometheusRule").values():
        found += [r["expr"] for group in rule["spec"]["groups"] for r in group["rules"]]
        found += [text for text in strings(rule["spec"]) if _NAME.search(text)]
    for scaler in of_kind(manifests, "ScaledObject").values():
        found += [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    return found


def test_telemetry_is_read() -> None:
    assert len(EXPORTED) > 40
    assert EXPORTED["triptych_requests_total"] == {"endpoint", "outcome"}


@pytest.mark.parametrize(
    "combination", ["standalone-everything", "ray-everything", "standalone-keda"]
)
def test_rules_and_scalers_name_metrics_that_we_export(combination: str) -> None:
    found = expressions(combination)
    assert found
    assert {query: faults for query in found if (faults := wrong(query))} == {}


def test_the_dashboard_names_metrics_that_we_export() -> None:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    assert len(queries) >= 20
    assert {query: faults for query in queries if (faults := wrong(query))} == {}
    variables = [v["query"] for v in dashboard["templating"]["list"]]
    assert {query: faults for query in variables if (faults := wrong(query))} == {}


def test_a_query_of_a_metric_or_label_that_we_do_not_export_is_found() -> None:
    assert wrong('sum(triptych_nothing{namespace="a"})') == ["no metric triptych_nothing"]
    assert wrong('sum by (colour) (triptych_requests_total{how="x"})') == [
        "triptych_requests_total has no label how",
        "no label colour",
    ]


def test_the_alerts_are_those_that_were_asked_for() -> None:
    (rule,) = of_kind(render(COMBINATIONS["standalone-everything"]), "PrometheusRule").values()
    alerts = {r["alert"] for group in rule["spec"]["groups"] for r in group["rules"]}
    assert alerts >= {
        "TriptychDisaggregationOff",
        "TriptychStoreFull",
        "TriptychQueueAge",
        "TriptychReplicaFlapping",
    }


def test_error_kinds_in_queries_exist() -> None:
    kinds = {cls.kind for cls in _tree(TriptychError)} | {"store_full"}
    for query in expressions("standalone-everything"):
        for kind in re.findall(r'\bkind="(\w+)"', query):
            assert kind in kinds


def _tree(cls: type[TriptychError]) -> Iterator[type[TriptychError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)
