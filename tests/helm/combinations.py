"""Combinations of values that must work, by name. Those in GOLDEN are compared word for word."""

# ruff: noqa: E501 - tables read better in one line each

from __future__ import annotations

from typing import Any

from tests.helm.rendering import Values, deep_merge, values

CPU_STAGE: Values = {"device": "cpu", "gpus": 0, "dtype": "float32", "kvSize": "64Mi"}
CPU: Values = {
    "stages": dict.fromkeys(("encode", "prefill", "decode", "prefillDecode", "all"), CPU_STAGE)
}
SCALED: Values = {
    "stages": {key: {"autoscaling": {"enabled": True}} for key in ("encode", "prefill", "decode")},
    "render": {"autoscaling": {"enabled": True}},
    "coordinator": {"autoscaling": {"enabled": True}},
}
KEDA: Values = {"autoscaling": {"kind": "keda", "prometheusAddress": "http://prometheus:9090"}}
RDMA: Values = {
    "rdma": {
        "enabled": True,
        "resource": "rdma/ib",
        "count": 2,
        "hugepages": {"pageSize": "2Mi", "size": "1Gi"},
        "ucx": {"UCX_NET_DEVICES": "mlx5_0:1", "UCX_TLS": "rc,cuda"},
    }
}
INGRESS: Values = {
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "llm.example.com",
        "tls": {"secretName": "llm-tls"},
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "40m"},
    }
}
ROUTE: Values = {
    "gateway": {
        "enabled": True,
        "hostnames": ["llm.example.com"],
        "parentRefs": [{"name": "shared", "namespace": "gateways"}],
    }
}
GATEWAY: Values = {
    "gateway": {
        "enabled": True,
        "create": True,
        "className": "envoy",
        "tlsSecretName": "llm-tls",
        "hostnames": ["llm.example.com", "*.llm.example.com"],
    }
}
MONITORING: Values = {
    "monitoring": {
        "podMonitor": True,
        "serviceMonitor": True,
        "rules": True,
        "dashboard": True,
        "labels": {"release": "prometheus"},
    }
}
RAY_MONITORING: Values = {"monitoring": {"podMonitor": True, "rules": True, "dashboard": True}}
REDIS: Values = {
    "ray": {"redis": {"enabled": True, "address": "redis:6379", "existingSecret": "redis"}}
}
PLACED: Values = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}
                ]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
        }
    ],
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "podAnnotations": {"a/b": "c"},
    "podLabels": {"team": "vision"},
    "extraEnv": {"NCCL_DEBUG": "WARN"},
}
RAY: Values = {"mode": "ray"}
DEMO: Values = deep_merge(CPU, {"model": "demo"})


def _merged(*parts: Values) -> Values:
    merged = values()
    for part in parts:
        merged = deep_merge(merged, part)
    return merged


def _both(name: str, *parts: Values) -> dict[str, Values]:
    """The same in both modes."""
    return {f"standalone-{name}": _merged(*parts), f"ray-{name}": _merged(RAY, *parts)}


COMBINATIONS: dict[str, Values] = {
    **_both("default"),
    **_both("demo", DEMO),
    **_both("e-pd", {"topology": "e-pd"}),
    **_both("all", {"topology": "all"}),
    **_both("cpu-e-pd", CPU, {"topology": "e-pd"}),
    **_both("cpu-all", CPU, {"topology": "all"}),
    **_both("scaled", SCALED),
    **_both("rdma", RDMA),
    **_both("rdma-without-policy", RDMA, {"rdma": {"hostNetwork": True}, "networkPolicy": {"enabled": False}}),
    **_both("rdma-1gi-pages", RDMA, {"rdma": {"ipcLock": False, "hugepages": {"pageSize": "1Gi"}}}),
    **_both("tcp-only", {"ec": {"transports": ["tcp"]}}),
    **_both("shm-and-tcp", {"ec": {"transports": ["shm", "tcp"], "allowedHosts": ["10.0.0.9"]}}),
    **_both("ingress", INGRESS),
    **_both("ingress-without-tls", {"ingress": {"enabled": True, "tls": {"enabled": False}}}),
    **_both("route", ROUTE),
    **_both("gateway", GATEWAY),
    **_both("own-secret", {"auth": {"existingSecret": "mine", "apiKey": {"value": ""}, "clusterToken": {"value": ""}}}),
    **_both("no-key", {"auth": {"apiKey": {"enabled": False, "value": ""}}}),
    **_both("model-on-claim", {"modelCache": {"type": "pvc", "storageClass": "nfs", "size": "200Gi"}}),
    **_both("model-on-own-claim", {"model": "/models/qwen", "modelCache": {"type": "pvc", "existingClaim": "weights", "readOnly": True}}),
    **_both("model-on-node", {"model": "/models/qwen", "modelCache": {"type": "hostPath", "hostPath": "/data/models"}}),
    **_both("model-gated", {"huggingface": {"existingSecret": "hub", "endpoint": "https://hub.example.com"}, "modelRevision": "v1"}),
    **_both("model-not-fetched-first", {"modelCache": {"download": False}}),
    **_both("digest", {"image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"], "pullPolicy": "Always"}}),
    **_both("egress", {"networkPolicy": {"restrictEgress": True}, "telemetry": {"otlpEndpoint": "http://otel:4318/v1/traces"}}),
    **_both("closed-off", {"networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}], "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}}),
    **_both("placed", {"stages": {"decode": PLACED}, "render": PLACED}),
    **_both("sized", {"maxModelLen": 8192, "blockSize": 32, "servedModelName": "qwen", "stages": {"decode": {"maxNumSeqs": 128, "maxNumBatchedTokens": 8192, "threads": 4}, "encode": {"encoderMaxBatchTokens": 16384}, "prefill": {"vision": False}}, "render": {"processes": 4, "allowedMediaDomains": ["images.example.com"]}}),
    **_both("scale-out", {"enableScaleOut": True, "auth": {"protectMetrics": True}}),
    **_both("without-test", {"test": {"enabled": False}}),
    **_both("labelled", {"commonLabels": {"cost-centre": "42"}, "fullnameOverride": "vision"}),
    "standalone-keda": _merged(SCALED, KEDA),
    "standalone-monitoring": _merged(MONITORING, {"auth": {"protectMetrics": True}}),
    "standalone-load-balancer": _merged({"coordinator": {"service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}}}}),
    "standalone-everything": _merged(RDMA, SCALED, KEDA, INGRESS, GATEWAY, MONITORING),
    "ray-monitoring": _merged(RAY, RAY_MONITORING),
    "ray-free-ports": _merged(RAY, {"ports": {"http": 0, "grpc": 0, "exchange": 0}}),
    "ray-redis": _merged(RAY, REDIS),
    "ray-redis-without-password": _merged(RAY, REDIS, {"ray": {"redis": {"existingSecret": ""}}}),
    "ray-everything": _merged(RAY, RDMA, SCALED, INGRESS, GATEWAY, RAY_MONITORING, REDIS),
}  # fmt: skip

GOLDEN = (
    "standalone-default",
    "standalone-demo",
    "standalone-everything",
    "ray-default",
    "ray-everything",
)


def named(name: str) -> dict[str, Any]:
    """The values of a combination."""
    return COMBINATIONS[name]
