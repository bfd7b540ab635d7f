"""Any values of the schema render to valid manifests or are refused with a sentence."""

from __future__ import annotations

import re
import sys
from typing import Any

import helm_python
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings

from tests.helm.rendering import CHART, ROOT, VERSIONS, Values, chart, check, render

sys.path.insert(0, str(ROOT / "helm"))
from values_spec import VALUES

_FORMATS = re.findall(
    r'\{\{- fail (?:\(printf )?"([^"]+)"', (CHART / "templates" / "_validate.tpl").read_text()
)
_SENTENCES = [re.compile(".*".join(map(re.escape, re.split(r"%[sqv]", form)))) for form in _FORMATS]

_MEANINGFUL: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["Qwen/Qwen3-VL-8B-Instruct", "demo", "/models/qwen", "qwen", ""]),
    "tolerations": st.just([{"operator": "Exists"}]),
    "affinity": st.just({"podAntiAffinity": {}}),
    "topologySpreadConstraints": st.just(
        [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    ),
    "clients": st.just([{"podSelector": {"matchLabels": {"a": "b"}}}]),
    "monitoring": st.just([{"namespaceSelector": {}}]),
    "parentRefs": st.just([{"name": "shared"}]),
    "expect": st.just("red"),
    "requests": st.just({"cpu": "500m", "memory": "1.5Gi", "example.com/device": 1}),
    "limits": st.just({"memory": "12G", "example.com/device": "1"}),
    "nodeSelector": st.just({"a": "b"}),
    "podLabels": st.just({"a": "b"}),
    "commonLabels": st.just({"a": "b"}),
    "labels": st.just({"a": "b"}),
    "dashboardLabels": st.just({"a": "b"}),
}
"""Parts that the schema leaves to Kubernetes, and a model that can be one."""

_NAMES = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True),
    st.text("abc'\" :#{}\n$", max_size=6),
    max_size=2,
)


def strategy(  # noqa: C901, PLR0911 - a case per kind of schema
    name: str, schema: dict[str, Any]
) -> st.SearchStrategy[Any]:
    """Values of one schema of ours; the generic generators are too slow for regular expressions."""
    if name in _MEANINGFUL and "properties" not in schema:
        return _MEANINGFUL[name]
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        children = {key: strategy(key, child) for key, child in schema["properties"].items()}
        children.pop("global", None)
        return st.fixed_dictionaries({}, optional=children)
    kind = schema["type"]
    if isinstance(kind, list):
        return st.sampled_from([1, 2, "50%"])
    if kind == "boolean":
        return st.booleans()
    if kind in ("integer", "number"):
        least = schema.get("minimum", 0)
        most = schema.get("maximum", 2000)
        numbers = st.integers(int(least) or 0, int(most))
        return numbers.filter(lambda n: n >= least)
    if kind == "array":
        return st.lists(strategy("", schema["items"]), max_size=2, unique_by=repr)
    if kind == "object":
        return _NAMES
    if "pattern" in schema:
        return st.from_regex(
            schema["pattern"].replace("$", r"\Z"), alphabet=st.characters(codec="ascii")
        )
    return st.text("ab c'\"\\{}:#$\n", max_size=8)


def sparse(node: dict[str, Any]) -> st.SearchStrategy[Values]:
    """A few groups of values at a time, so that not everything is refused at once."""
    groups = {
        key: strategy(key, child) for key, child in node["properties"].items() if key != "global"
    }
    chosen = st.sets(st.sampled_from(sorted(groups)), max_size=4)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: groups[key] for key in keys}))


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(sparse(VALUES), st.sampled_from(["demo", "Qwen/Qwen3-VL-8B-Instruct"]))
def test_values_of_the_schema_render_or_are_refused_with_a_sentence(
    given_values: Values, model: str
) -> None:
    whole = {"model": model, **given_values}
    chart().validate_schema(whole)
    try:
        manifests = render(whole)
    except helm_python.HelmRenderError as refusal:
        if not any(sentence.search(refusal.detail) for sentence in _SENTENCES):
            raise
        return
    for manifest in manifests:
        check(manifest, VERSIONS[-1])
