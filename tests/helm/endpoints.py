"""EndpointSlices as the endpoint controller writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pod:
    """What a slice says of a pod."""

    address: str
    uid: str
    ready: bool | None = True
    terminating: bool = False


def endpoint_slice(
    name: str,
    pods: Sequence[Pod],
    ports: dict[str, int],
    *,
    namespace: str = "prod",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """One slice; without pods it has null endpoints, as the API server writes it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "addressType": "IPv6" if pods and ":" in pods[0].address else "IPv4",
        "endpoints": [
            {
                "addresses": [pod.address],
                "conditions": {
                    **({} if pod.ready is None else {"ready": pod.ready}),
                    "serving": pod.ready is not False or pod.terminating,
                    "terminating": pod.terminating,
                },
                "targetRef": {"kind": "Pod", "name": f"pod-{pod.uid}", "uid": pod.uid},
            }
            for pod in pods
        ]
        or None,
        "ports": [{"name": key, "port": port, "protocol": "TCP"} for key, port in ports.items()],
    }
