"""Rendering the chart with Helm's own SDK, and checking what comes out."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate.utils as kubernetes
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "triptych"
VERSIONS = ("1.31.0", "1.37.0")
"""Kubernetes versions that every manifest is checked for: three years apart."""

Values = dict[str, Any]
Manifest = dict[str, Any]

_POD_KINDS = frozenset({"Deployment", "Pod"})

# Reads a megabyte of JSON for each manifest otherwise.
kubernetes.schema_contents = functools.cache(kubernetes.schema_contents)


@functools.cache
def chart() -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


def deep_merge(base: Values, more: Values) -> Values:
    """`more` over `base`, map by map."""
    merged = dict(base)
    for key, value in more.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = deep_merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def values(**more: Any) -> Values:
    """Values that render the same each time: a model, and secrets that are given."""
    fixed = {
        "model": "Qwen/Qwen3-VL-8B-Instruct",
        "auth": {"apiKey": {"value": "a-key"}, "clusterToken": {"value": "a-token"}},
    }
    return deep_merge(fixed, more)


def render_text(given: Values, name: str = "triptych", namespace: str = "prod") -> dict[str, str]:
    """Template -> what it renders to; empty ones are left out."""
    rendered = chart().render(given, name=name, namespace=namespace)
    return {
        path.removeprefix("triptych/templates/"): text
        for path, text in sorted(rendered.items())
        if text.strip()
    }


def render(given: Values, name: str = "triptych", namespace: str = "prod") -> list[Manifest]:
    """Every manifest."""
    return [
        document
        for path, text in render_text(given, name, namespace).items()
        if path != "NOTES.txt"
        for document in yaml.safe_load_all(text)
        if document
    ]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Name -> manifest."""
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod template with a name for it, those inside a RayService included."""
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Deployment":
            yield name, manifest["spec"]["template"]
        elif manifest["kind"] == "Pod":
            yield name, manifest
        elif manifest["kind"] in ("RayService", "RayCluster"):
            spec = manifest["spec"]
            cluster = spec.get("rayClusterConfig", spec)
            yield "head", cluster["headGroupSpec"]["template"]
            for group in cluster["workerGroupSpecs"]:
                yield group["groupName"], group["template"]


def main_container(pod: Manifest) -> Manifest:
    """The container that is not an init container."""
    containers: list[Manifest] = pod["spec"]["containers"]
    return containers[0]


def check(manifest: Manifest, version: str) -> None:
    """Refuse what the API server of a version would refuse.

    Raises:
        jsonschema.ValidationError: says where.
    """
    text = json.dumps(manifest, sort_keys=True)
    if (text, version) not in _CHECKED:
        _check(manifest, version)
        _CHECKED.add((text, version))


_CHECKED: set[tuple[str, str]] = set()
"""What was found right before: combinations have most of their manifests in common."""


def _check(manifest: Manifest, version: str) -> None:
    group = manifest["apiVersion"]
    schemas = custom_schemas().get(group)
    if schemas is None:
        kubernetes.validate(manifest, version, strict=True)
        return
    schema = {**schemas[manifest["kind"]], "$defs": schemas.get("$defs", {})}
    jsonschema.Draft202012Validator(schema).validate(manifest)
    for kind, embedded in _embedded(schema, manifest, schema["$defs"]):
        whole = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "embedded"}}
        if kind == "PodTemplate":
            whole["template"] = embedded
        else:
            whole.update(embedded)
        kubernetes.validate(whole, version, strict=True)


@functools.cache
def custom_schemas() -> dict[str, dict[str, Any]]:
    """Group and version -> kind -> schema."""
    return {
        path.stem.replace("_", "/"): yaml.safe_load(path.read_text())
        for path in (Path(__file__).parent / "crds").glob("*.yaml")
    }


def _embedded(schema: Any, value: Any, defs: dict[str, Any]) -> Iterator[tuple[str, Manifest]]:
    """Parts of a custom resource that are kinds of Kubernetes itself."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix("#/$defs/")]
    if "x-kubernetes" in schema:
        yield schema["x-kubernetes"], copy.deepcopy(value)
    elif isinstance(value, dict):
        for key, child in value.items():
            if key in schema.get("properties", {}):
                yield from _embedded(schema["properties"][key], child, defs)
    elif isinstance(value, list) and "items" in schema:
        for child in value:
            yield from _embedded(schema["items"], child, defs)


def serve_config(manifests: list[Manifest]) -> dict[str, Any]:
    """The Serve config of the RayService."""
    (service,) = of_kind(manifests, "RayService").values()
    config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return config


def flat(value: Any) -> str:
    """Anything as one line, for searching in it."""
    return json.dumps(value, sort_keys=True)
