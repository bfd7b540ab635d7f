"""Types of values, and the parts of the specification that several components share."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
BYTES = r"^[0-9]+(Ki|Mi|Gi|Ti)?$"
NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
OBJECT = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
PATH = r"^/[^\s]*$"
URL = r"^https?://[^\s]+$"
ADDRESS = r"^[^\s:/]+(:[0-9]+)?$"


def text(description: str, pattern: str = "", **more: Any) -> Schema:
    """A string; an empty one is allowed wherever a pattern is given for an optional value."""
    return {"type": "string", "description": description, **_pattern(pattern), **more}


def _pattern(pattern: str) -> Schema:
    return {"pattern": pattern} if pattern else {}


def optional(description: str, pattern: str) -> Schema:
    """A string that is empty or matches the pattern."""
    return text(description, f"^$|{pattern}")


def choice(description: str, *values: str) -> Schema:
    """One of a few words."""
    return {"enum": list(values), "description": description}


def flag(description: str) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": description}


def whole(description: str, minimum: int = 0, maximum: int | None = None) -> Schema:
    """An integer."""
    bounds: Schema = {"minimum": minimum}
    if maximum is not None:
        bounds["maximum"] = maximum
    return {"type": "integer", "description": description, **bounds}


def number(description: str, minimum: float = 0, maximum: float | None = None) -> Schema:
    """A number."""
    bounds: Schema = {"minimum": minimum}
    if maximum is not None:
        bounds["maximum"] = maximum
    return {"type": "number", "description": description, **bounds}


def quantity(description: str) -> Schema:
    """A Kubernetes quantity, quoted; empty where it is optional."""
    return optional(description, QUANTITY)


def texts(description: str, pattern: str = "") -> Schema:
    """A list of strings."""
    return {
        "type": "array",
        "description": description,
        "items": {"type": "string", **_pattern(pattern)},
    }


def names(description: str) -> Schema:
    """Labels, annotations or environment: names to strings."""
    return {
        "type": "object",
        "description": description,
        "additionalProperties": {"type": "string"},
    }


def kubernetes(description: str, kind: str = "object") -> Schema:
    """A part of the Kubernetes API, passed through; the API server checks it."""
    schema: Schema = {"type": kind, "description": description}
    if kind == "array":
        schema["items"] = {"type": "object"}
    return schema


def group(description: str, properties: dict[str, Schema]) -> Schema:
    """A map with these keys and no others."""
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": properties,
    }


RESOURCES = group(
    "CPU, memory and further resources of the container, as Kubernetes takes them. GPUs are set by "
    "`gpus`, hugepages and RDMA devices by `rdma`.",
    {
        side: {
            "type": "object",
            "description": f"Resource {side}.",
            "additionalProperties": {
                "type": ["string", "integer", "number"],
                "pattern": QUANTITY,
            },
        }
        for side in ("requests", "limits")
    },
)

POD: dict[str, Schema] = {
    "resources": RESOURCES,
    "nodeSelector": names("Labels of the nodes it may run on."),
    "tolerations": kubernetes("Taints it tolerates.", "array"),
    "affinity": kubernetes("Affinity rules."),
    "topologySpreadConstraints": kubernetes(
        "Spread over nodes and zones. The label selector of the component is added. Empty: one "
        "soft constraint over nodes.",
        "array",
    ),
    "priorityClassName": text("Priority class."),
    "runtimeClassName": text("Runtime class, for example `nvidia`."),
    "podAnnotations": names("Annotations of its pods."),
    "podLabels": names("Labels of its pods."),
    "extraEnv": names("Further environment variables, by name."),
}

SCALING = group(
    "Scaling of this component. Standalone: KEDA or HPA as `autoscaling.kind` says; ray: Serve's "
    "autoscaler within Ray's in-tree autoscaler.",
    {
        "enabled": flag("Scale between the bounds instead of keeping `replicas`."),
        "minReplicas": whole("Fewest replicas.", 1),
        "maxReplicas": whole("Most replicas.", 1),
        "waitingPerReplica": number(
            "Requests or items running and waiting that one replica is meant to have "
            "(KEDA, and Serve in mode ray).",
            1,
        ),
        "cpuPercent": whole("CPU use, in percent of the request, to aim for (HPA).", 1, 100),
    },
)

SERVER: dict[str, Schema] = {
    "replicas": whole("Replicas while it is not scaled automatically.", 1),
    "autoscaling": SCALING,
    "maxUnavailable": {
        "type": ["integer", "string"],
        "minimum": 1,
        "pattern": "^[1-9][0-9]?%$|^100%$",
        "description": "How many of its pods an eviction may take at once (PodDisruptionBudget).",
    },
    "startupSeconds": whole(
        "How long the startup probe waits for loading before the container is restarted.", 10
    ),
    "extraArgs": texts("Further arguments of its command (mode standalone)."),
    **POD,
}

STORE: dict[str, Schema] = {
    "storeSize": text(
        "Bytes of its store of embeddings, pixels or KV offers. It lies in /dev/shm, which is "
        "sized after it, and counts towards the memory limit.",
        BYTES,
    ),
}

STAGE: dict[str, Schema] = {
    "engine": {
        "const": "native",
        "description": "What runs the model. Only `native`: stages run by vLLM are not offered by "
        "this chart yet.",
    },
    "device": choice("Where the model runs.", "cuda", "cpu"),
    "gpus": whole("GPUs of a replica. More than one needs tensor parallelism, which there is not.",
                  0, 1),
    "dtype": choice("Type of weights and activations.", "auto", "float32", "float16", "bfloat16"),
    "kvSize": optional("Bytes of the KV cache; empty: chosen by the engine.", BYTES),
    "maxNumSeqs": whole("Requests in one batch; 0: chosen by the engine."),
    "maxNumBatchedTokens": whole("Tokens of one step; 0: chosen by the engine."),
    "encoderMaxBatchTokens": whole("Placeholder tokens of one encoder batch; 0: chosen by the "
                                   "engine."),
    "vision": flag("Load the vision tower where the role may have one, so that pixels can be taken "
                   "as a last resort."),
    "threads": whole("Threads of torch on CPU; 0: chosen by torch."),
    **STORE,
    **SERVER,
}  # fmt: skip
