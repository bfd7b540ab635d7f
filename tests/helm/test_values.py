"""The values: typed, documented, used, and refused with a message that a person understands."""

# ruff: noqa: E501 - tables read better in one line each

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from tests.helm.rendering import CHART, ROOT, Values, chart, deep_merge, values

sys.path.insert(0, str(ROOT / "helm"))
from values_spec import VALUES

DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())


def leaves(node: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, child in node["properties"].items():
        if "properties" in child:
            found |= leaves(child, (*path, key))
        else:
            found[*path, key] = child
    return found


def test_the_schema_and_the_table_are_in_step_with_the_specification() -> None:
    done = subprocess.run(
        [sys.executable, "helm/generate.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_schema_is_a_schema_and_takes_the_defaults() -> None:
    schema = chart().schema
    assert schema is not None
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(DEFAULTS)


def test_every_value_has_a_default_and_every_default_a_description() -> None:
    specified = {
        path for path in leaves(VALUES)
        if path != ("global",) and path[-2:-1] != ("resources",)
    }  # fmt: skip

    def defaults(
        node: Any, schema: dict[str, Any], path: tuple[str, ...] = ()
    ) -> set[tuple[str, ...]]:
        if "properties" not in schema:
            return {path}
        return set().union(
            *(
                defaults(child, schema["properties"][key], (*path, key))
                for key, child in node.items()
            )
        )

    given = {path for path in defaults(DEFAULTS, VALUES) if path[-2:-1] != ("resources",)}
    assert given == specified
    assert all(len(leaf["description"]) > 5 for leaf in leaves(VALUES).values())


def test_every_value_is_used_by_a_template() -> None:
    """By name: `values.yaml` holds nothing that no template reads."""
    templates = "\n".join(
        path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()
    )
    unused = [
        ".".join(path)
        for path in leaves(VALUES)
        if path != ("global",)
        and path[-2:-1] != ("resources",)
        and path[-1] != "engine"  # there is but one
        and not re.search(rf"\b{path[-1]}\b", templates)
    ]
    assert unused == []


MISTAKES: dict[str, tuple[Values, str]] = {
    "a word that is not a mode": ({"mode": "rya"}, "/mode.*'standalone', 'ray'"),
    "a word that is not a topology": ({"topology": "e-p-d"}, "/topology.*'epd', 'e-pd', 'all'"),
    "an engine that is not offered": ({"stages": {"encode": {"engine": "vllm"}}}, "/stages/encode/engine.*'native'"),
    "a misspelt key": ({"replicas": 2}, "'replicas' not allowed"),
    "a misspelt key of a stage": ({"stages": {"encode": {"replcas": 2}}}, "/stages/encode.*'replcas' not allowed"),
    "a stage that there is not": ({"stages": {"encoder": {}}}, "/stages.*'encoder' not allowed"),
    "a number in quotes": ({"stages": {"decode": {"replicas": "2"}}}, "/stages/decode/replicas.*got string, want integer"),
    "no replicas": ({"stages": {"decode": {"replicas": 0}}}, "/stages/decode/replicas.*got 0, want 1"),
    "tensor parallelism": ({"stages": {"decode": {"gpus": 2}}}, "/stages/decode/gpus.*got 2, want 1"),
    "a size with a space": ({"stages": {"encode": {"storeSize": "4 GB"}}}, "/stages/encode/storeSize.*'4 GB'"),
    "a size without quotes": ({"stages": {"encode": {"storeSize": 4}}}, "/stages/encode/storeSize.*got number, want string"),
    "a word for true": ({"networkPolicy": {"enabled": "yes"}}, "/networkPolicy/enabled.*got string, want boolean"),
    "an unknown transport": ({"ec": {"transports": ["rdma"]}}, "/ec/transports/0.*'shm', 'nixl', 'ucx', 'tcp'"),
    "one transport instead of a list": ({"ec": {"transports": "tcp"}}, "/ec/transports.*got string, want array"),
    "a transport named twice": ({"ec": {"transports": ["tcp", "tcp"]}}, "/ec/transports.*equal"),
    "a privileged port": ({"coordinator": {"port": 80}}, "/coordinator/port.*got 80, want 1,?024"),
    "a relative path": ({"modelCache": {"path": "models"}}, "/modelCache/path.*'models'"),
    "an address without http": ({"autoscaling": {"prometheusAddress": "prometheus:9090"}}, "/autoscaling/prometheusAddress.*'prometheus:9090'"),
    "a tag in the repository": ({"image": {"repository": "triptych:latest"}}, "/image/repository.*'triptych:latest'"),
    "a digest cut short": ({"image": {"digest": "sha256:abc"}}, "/image/digest.*'sha256:abc'"),
    "running as root": ({"security": {"runAsUser": 0}}, "/security/runAsUser.*got 0, want 1"),
    "an environment as Kubernetes lists it": ({"render": {"extraEnv": [{"name": "A", "value": "b"}]}}, "/render/extraEnv.*got array, want object"),
    "an environment variable that is a number": ({"render": {"extraEnv": {"A": 1}}}, "/render/extraEnv/A.*got number, want string"),
    "a GPU where none is set": ({"stages": {"encode": {"resources": {"limits": {"memory": "48GB"}}}}}, "/stages/encode/resources/limits/memory.*'48GB'"),
    "a host name with a scheme": ({"ingress": {"host": "https://a.b"}}, "/ingress/host.*'https://a.b'"),
    "a log level in small letters": ({"telemetry": {"logLevel": "info"}}, "/telemetry/logLevel.*'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
    "more than the whole": ({"coordinator": {"autoscaling": {"cpuPercent": 250}}}, "/coordinator/autoscaling/cpuPercent.*got 250, want 100"),
}  # fmt: skip


def test_there_are_mistakes_enough() -> None:
    assert len(MISTAKES) >= 20


@pytest.mark.parametrize("name", MISTAKES)
def test_a_typical_mistake_is_refused_by_the_schema(name: str) -> None:
    """The message names the value's path, and what was wrong or what is allowed."""
    given, message = MISTAKES[name]
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        chart().render(deep_merge(values(), given), name="triptych", namespace="prod")
    (line,) = [line for line in refusal.value.detail.splitlines() if line.startswith("- at")]
    assert re.search(message, line), line
    assert len(line) < 250
