"""The containers of mode standalone as local processes, found through a fake API server."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.helm.combinations import DEMO
from tests.helm.fake_api_server import FakeApiServer
from tests.helm.local_pods import LocalCluster, free_ports
from tests.helm.rendering import deep_merge, main_container, render, values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    http, grpc, exchange, front = free_ports(4)
    small = {"threads": 1, "storeSize": "32Mi"}
    with FakeApiServer() as api:
        given = deep_merge(
            values(**DEMO),
            {
                "ports": {"http": http, "grpc": grpc, "exchange": exchange},
                "coordinator": {
                    "port": front,
                    "replicas": 1,
                    "extraEnv": {"TRIPTYCH_KUBERNETES_API": api.url},
                },
                "render": {"replicas": 1, "processes": 1, "storeSize": "32Mi"},
                "stages": dict.fromkeys(("encode", "prefill", "decode"), small),
                "ec": {"leaseSeconds": 1, "transports": ["shm", "tcp"]},
                "drain": {"preStopSeconds": 2, "streamSeconds": 10},
                "test": {"timeoutSeconds": 60},
            },
        )
        with LocalCluster(render(given), api, tmp_path_factory.mktemp("pods")) as running:
            for component in ("render", "encode", "prefill", "decode", "coordinator"):
                running.wait_ready(component, 1)
            yield running


def ready_replicas(cluster: LocalCluster, role: str) -> int:
    """How many replicas of a role the coordinator sees."""
    # Asked directly: without a replica of a stage it is not ready, and its Service has no endpoint.
    (coordinator,) = cluster.of("coordinator")
    port = main_container(coordinator.spec)["ports"][0]["containerPort"]
    url = f"http://{coordinator.address}:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf'^triptych_replicas_ready{{role="{role}"}} ([0-9.]+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def wait_seen(cluster: LocalCluster, role: str, count: int) -> None:
    until = time.monotonic() + 60
    while (seen := ready_replicas(cluster, role)) != count:
        assert time.monotonic() < until, f"the coordinator sees {seen} {role} replicas, not {count}"
        time.sleep(0.1)


def check_picture(cluster: LocalCluster) -> None:
    cluster.wait_ready("coordinator", 1)
    done = cluster.run_test_hook()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "red" in done.stdout


def test_the_helm_test_passes(cluster: LocalCluster) -> None:
    """A picture goes in, and the answer is right."""
    check_picture(cluster)


def test_scaled_up_and_down_the_coordinator_sees_it_and_answers(cluster: LocalCluster) -> None:
    (first,) = cluster.of("encode")
    cluster.start("triptych-encode")
    cluster.wait_ready("encode", 2)
    wait_seen(cluster, "encode", 2)
    assert cluster.delete(first) == 0, "it ends by itself within its grace period"
    wait_seen(cluster, "encode", 1)
    check_picture(cluster)


def test_a_pod_that_is_told_to_leave_gets_no_new_work_before_its_hook_is_over(
    cluster: LocalCluster,
) -> None:
    (old,) = cluster.of("prefill")
    cluster.start("triptych-prefill")
    cluster.wait_ready("prefill", 2)
    wait_seen(cluster, "prefill", 2)
    old.terminating = True
    cluster._list_endpoints()
    wait_seen(cluster, "prefill", 1)
    assert old.process.poll() is None
    check_picture(cluster)
    assert cluster.delete(old) == 0


def test_a_pod_that_dies_is_replaced(cluster: LocalCluster) -> None:
    (dead,) = cluster.of("decode")
    new = cluster.replace(dead)
    assert new.address != dead.address
    cluster.wait_ready("decode", 1)
    wait_seen(cluster, "decode", 1)
    check_picture(cluster)


def test_a_wrong_answer_or_no_server_fails_the_helm_test(cluster: LocalCluster) -> None:
    (pod,) = [m for m in cluster.manifests if m["kind"] == "Pod"]
    expected = next(e for e in pod["spec"]["containers"][0]["env"] if e["name"] == "EXPECT")
    before, expected["value"] = expected["value"], r"\bblue\b"
    try:
        done = cluster.run_test_hook()
    finally:
        expected["value"] = before
    assert done.returncode != 0
    assert "does not match" in done.stderr
