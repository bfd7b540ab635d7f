"""What the fake API server says of itself: kinds, OpenAPI, selectors, Status objects."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

RESOURCES: tuple[tuple[str, str, str], ...] = (
    ("v1", "secrets", "Secret"),
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "services", "Service"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("v1", "pods", "Pod"),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "replicasets", "ReplicaSet"),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    ("gateway.networking.k8s.io/v1", "gateways", "Gateway"),
    ("gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute"),
    ("keda.sh/v1alpha1", "scaledobjects", "ScaledObject"),
    ("monitoring.coreos.com/v1", "podmonitors", "PodMonitor"),
    ("monitoring.coreos.com/v1", "prometheusrules", "PrometheusRule"),
    ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
    ("networking.k8s.io/v1", "ingresses", "Ingress"),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("ray.io/v1", "rayservices", "RayService"),
    ("rbac.authorization.k8s.io/v1", "roles", "Role"),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
)


def discovery(path: str) -> Object | None:
    """What clients ask before they ask for objects."""
    versions = sorted({version for version, _, _ in RESOURCES if "/" in version})
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [
            {
                "name": version.split("/")[0],
                "versions": [{"groupVersion": version, "version": version.split("/")[1]}],
                "preferredVersion": {"groupVersion": version, "version": version.split("/")[1]},
            }
            for version in versions
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path.startswith("/openapi/v3"):
        return _openapi(path.removeprefix("/openapi/v3").strip("/"))
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if path.startswith(("/api/", "/apis/")) and version in {*versions, "v1"}:
        resources = [
            {
                "name": plural,
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
            }
            for known, plural, kind in RESOURCES
            if known == version
        ]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return None


def _openapi(path: str) -> Object:
    """The index, or of a group just enough to say that the server itself checks fields."""
    versions = sorted({version for version, _, _ in RESOURCES})
    places = {
        f"apis/{version}" if "/" in version else f"api/{version}": version for version in versions
    }
    if not path:
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}
    version = places.get(path, "")
    group, _, number = version.rpartition("/")
    return {
        "openapi": "3.0.0",
        "info": {"title": "fake", "version": "1"},
        "paths": {
            f"/{path}/namespaces/{{namespace}}/{plural}/{{name}}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query"}],
                    "x-kubernetes-group-version-kind": {
                        "group": group,
                        "version": number,
                        "kind": kind,
                    },
                }
            }
            for known, plural, kind in RESOURCES
            if known == version
        },
    }


def selects(selector: str, item: Object) -> bool:
    """Whether labels match `a=b,c!=d`; set-based selectors match everything."""
    labels = item["metadata"].get("labels", {})
    for term in filter(None, selector.split(",")):
        name, _, value = term.partition("!=" if "!=" in term else "=")
        if "!=" in term and labels.get(name) == value:
            return False
        if "!=" not in term and "=" in term and labels.get(name) != value.lstrip("="):
            return False
    return True


def status(code: int, reason: str, message: str) -> Object:
    """A Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
