"""Writes deploy/kubernetes/, for those without Helm: the chart's mode ray, rendered.

python helm/plain_manifests.py            write the files
python helm/plain_manifests.py --check    fail if one is out of step with the chart
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"

VALUES: dict[str, Any] = {
    "mode": "ray",
    "model": "Qwen/Qwen3-VL-8B-Instruct",
    "auth": {"existingSecret": "triptych"},
    "test": {"enabled": False},
}

FIRST = """\
# Made by helm/plain_manifests.py from the chart; edit the chart, or edit a copy of this file.
#
# First the secrets, once:
#   kubectl create secret generic triptych \\
#     --from-literal=api-key="$(openssl rand -hex 24)" \\
#     --from-literal=cluster-token="$(openssl rand -hex 24)"
"""

SERVICE = f"""\
{FIRST}# then, with the KubeRay operator installed:
#   kubectl apply -f rayservice.yaml
# The OpenAI API is http://triptych:8000 inside the cluster.
"""

CLUSTER = f"""\
{FIRST}# then, with the KubeRay operator installed:
#   kubectl apply -f raycluster.yaml
#   kubectl port-forward service/triptych-head-svc 8265 &
#   serve deploy serve-config.yaml --address http://localhost:8265
# A RayService does the last step by itself, and replaces a cluster without an outage.
"""

SERVE = """\
# Made by helm/plain_manifests.py from the chart; edit the chart, or edit a copy of this file.
# The Serve applications of raycluster.yaml: `serve deploy serve-config.yaml`.
"""


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def files() -> dict[Path, str]:
    """File -> its text."""
    manifests = [_plain(manifest) for manifest in _rendered()]
    (service,) = [m for m in manifests if m["kind"] == "RayService"]
    others = [m for m in manifests if m["kind"] != "RayService"]
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": service["metadata"],
        "spec": service["spec"]["rayClusterConfig"],
    }
    return {
        FOLDER / "rayservice.yaml": SERVICE + _dump(*others, service),
        FOLDER / "raycluster.yaml": CLUSTER + _dump(*others, cluster),
        FOLDER / "serve-config.yaml": SERVE + service["spec"]["serveConfigV2"],
    }


def _rendered() -> list[dict[str, Any]]:
    with helm_python.Chart.load(ROOT / "helm" / "triptych") as chart:
        rendered = chart.render(VALUES, name="triptych")
    return [
        manifest
        for path, text in sorted(rendered.items())
        if not path.endswith("NOTES.txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def _plain(node: Any) -> Any:
    """Without what only Helm has a use for, and in whatever namespace it is applied to."""
    if isinstance(node, list):
        return [_plain(child) for child in node]
    if not isinstance(node, dict):
        return node
    dropped = {"helm.sh/chart", "app.kubernetes.io/managed-by"}
    if "name" in node and "labels" in node:
        dropped.add("namespace")
    return {key: _plain(value) for key, value in node.items() if key not in dropped}


def _dump(*manifests: dict[str, Any]) -> str:
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=100, explicit_start=True)


def main(arguments: list[str]) -> int:
    """Write, or check; returns the exit status."""
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path} is out of step: run python helm/plain_manifests.py\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
