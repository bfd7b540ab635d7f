"""Combinations that cannot work are refused while rendering, with a sentence that says why."""

# ruff: noqa: E501 - tables read better in one line each

from __future__ import annotations

import re

import helm_python
import pytest

from tests.helm.rendering import CHART, Values, chart, deep_merge, values

REFUSED: dict[str, tuple[Values, str]] = {
    "no model": ({"model": ""}, "model must be set"),
    "a model that is no name": ({"model": "qwen"}, "neither a Hugging Face name"),
    "cuda without a GPU": ({"stages": {"encode": {"gpus": 0}}}, "stages.encode.device is cuda but gpus is 0"),
    "a GPU without cuda": ({"stages": {"decode": {"device": "cpu"}}}, "a GPU would stand idle"),
    "stages of two dtypes": ({"stages": {"decode": {"dtype": "float16"}}}, "all stages need the same dtype"),
    "a store that the memory limit does not hold": ({"stages": {"encode": {"storeSize": "48Gi"}}}, "counts towards the limit"),
    "a store of render likewise": ({"render": {"storeSize": "8Gi"}}, "render.storeSize is 8Gi"),
    "shared memory alone": ({"ec": {"transports": ["shm"]}}, "add tcp"),
    "RDMA without a transport for it": ({"rdma": {"enabled": True}, "ec": {"transports": ["tcp"]}}, "only nixl and ucx use RDMA"),
    "policies in the host's network": ({"rdma": {"enabled": True, "hostNetwork": True}}, "policies do not apply"),
    "huge pages without RDMA": ({"rdma": {"hugepages": {"size": "1Gi"}}}, "rdma.enabled is false"),
    "a drain shorter than the leases": ({"drain": {"preStopSeconds": 30}}, "the drain must be longer"),
    "two servers on one port": ({"ports": {"grpc": 8001}}, "they must differ"),
    "a Service without a port": ({"ports": {"grpc": 0}}, "Services name the port"),
    "a port that needs root": ({"mode": "ray", "ports": {"http": 80}}, "which ports below 1024 need"),
    "bounds the wrong way round": ({"stages": {"encode": {"autoscaling": {"enabled": True, "minReplicas": 5}}}}, "minReplicas is 5, more than maxReplicas 4"),
    "KEDA without Prometheus": ({"autoscaling": {"kind": "keda"}, "render": {"autoscaling": {"enabled": True}}}, "KEDA reads our metrics from Prometheus"),
    "CPU use of nothing": ({"render": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}}, "set render.resources.requests.cpu"),
    "a node's folder without a name": ({"modelCache": {"type": "hostPath"}}, "name the folder"),
    "a node's folder of another type": ({"modelCache": {"hostPath": "/data"}}, "set the type to hostPath"),
    "one node's claim for all": ({"modelCache": {"type": "pvc", "accessMode": "ReadWriteOnce"}}, "use ReadWriteMany"),
    "a claim of another type": ({"modelCache": {"existingClaim": "a"}}, "set the type to pvc"),
    "a path in an empty folder": ({"model": "/models/a"}, "which starts empty"),
    "a path where nothing is mounted": ({"model": "/data/a", "modelCache": {"type": "hostPath", "hostPath": "/d"}}, "where nothing is mounted"),
    "an empty folder that stays so": ({"modelCache": {"readOnly": True}}, "which starts empty"),
    "a new claim that stays empty": ({"modelCache": {"readOnly": True, "type": "pvc"}}, "name modelCache.existingClaim"),
    "TLS without a host": ({"ingress": {"enabled": True, "tls": {"secretName": "a"}}}, "a certificate is for a host name"),
    "TLS without a certificate": ({"ingress": {"enabled": True, "host": "a.b"}}, "name the secret with the certificate"),
    "a route to nowhere": ({"gateway": {"enabled": True}}, "no Gateway to attach to"),
    "a gateway without a route": ({"gateway": {"create": True, "className": "a", "tlsSecretName": "b"}}, "without a route serves nothing"),
    "a gateway without a certificate": ({"gateway": {"enabled": True, "create": True, "className": "a"}}, "needs both a class and a certificate"),
    "two gateways": ({"gateway": {"enabled": True, "create": True, "parentRefs": [{"name": "a"}]}}, "leave parentRefs empty"),
    "two sources of secrets": ({"auth": {"existingSecret": "a"}}, "leave the values empty"),
    "metrics without a key": ({"auth": {"protectMetrics": True, "apiKey": {"enabled": False, "value": ""}}}, "no key to protect them with"),
    "a key that nobody is asked for": ({"auth": {"apiKey": {"enabled": False}}}, "would not be asked for it"),
    "Redis without Ray": ({"ray": {"redis": {"enabled": True, "address": "a:1"}}}, "set mode=ray"),
    "Redis without an address": ({"mode": "ray", "ray": {"redis": {"enabled": True}}}, "Redis is not part of this chart"),
    "KEDA in Ray": ({"mode": "ray", "autoscaling": {"kind": "keda"}}, "Serve and Ray's autoscaler decide"),
    "arguments in Ray": ({"mode": "ray", "render": {"extraArgs": ["--a"]}}, "Ray starts the processes"),
    "a service scraped through Ray": ({"mode": "ray", "monitoring": {"serviceMonitor": True}}, "use monitoring.podMonitor"),
}  # fmt: skip


def refusal(given: Values) -> str:
    with pytest.raises(helm_python.HelmRenderError) as error:
        chart().render(deep_merge(values(), given), name="triptych", namespace="prod")
    return error.value.detail


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_sentence(name: str) -> None:
    given, sentence = REFUSED[name]
    assert sentence in refusal(given)


def test_every_refusal_of_the_chart_is_tried() -> None:
    text = (CHART / "templates" / "_validate.tpl").read_text()
    formats = re.findall(r'\{\{- fail (?:\(printf )?"([^"]+)"', text)
    said = "\n".join(refusal(given) for given, _ in REFUSED.values())
    untried = [
        form
        for form in formats
        if not re.search(".*".join(map(re.escape, re.split(r"%[sqv]", form))), said)
    ]
    assert len(formats) > 30
    assert untried == []
