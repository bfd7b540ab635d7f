"""The Serve config of mode ray, given to a local Ray as KubeRay gives it, serves the demo model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.ray_environment import temporary_root, variables
from tests.helm.combinations import DEMO
from tests.helm.local_pods import free_ports, run_test_hook
from tests.helm.local_ray import LocalRay
from tests.helm.rendering import deep_merge, render, values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    (port,) = free_ports(1)
    small = {"threads": 1, "storeSize": "32Mi", "replicas": 1}
    given = deep_merge(
        values(**DEMO),
        {
            "mode": "ray",
            "ports": {"http": 0, "grpc": 0, "exchange": 0},  # all on one address here
            "coordinator": {"replicas": 1},
            "render": {"replicas": 1, "processes": 1, "storeSize": "32Mi"},
            "stages": {
                "encode": {**small, "replicas": 2},
                "prefill": small,
                "decode": small,
            },
            "ec": {"transports": ["shm", "tcp"]},
            "drain": {"streamSeconds": 5},
            "ray": {"servePort": port},
            "test": {"timeoutSeconds": 60},
        },
    )
    folder = tmp_path_factory.mktemp("ray")
    # The proxy's sockets need a short path; the head of a KubeRay cluster asks for no token.
    with tempfile.TemporaryDirectory(prefix="triptych-", dir=temporary_root()) as short:
        apart = {k: v for k, v in variables(Path(short)).items() if not k.startswith("RAY_AUTH")}
        with LocalRay(render(given), folder, Path(short), apart) as running:
            yield running


def test_every_application_runs_with_the_replicas_that_were_asked_for(ray: LocalRay) -> None:
    found = {
        name: {d: len(info["replicas"]) for d, info in application["deployments"].items()}
        for name, application in ray.applications().items()
    }
    assert found == {
        "triptych-stages": {"stages": 1, "render": 1, "encode": 2, "prefill": 1, "decode": 1},
        "triptych": {"coordinator": 1},
    }


def test_the_helm_test_passes(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A picture goes in through Serve's ingress, and the answer is right."""
    done = run_test_hook(ray.manifests, ray.resolve, tmp_path_factory.mktemp("hook"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "red" in done.stdout
