"""Secrets are generated once: seen through a fake API server, as rendering alone reaches none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests.helm.fake_api_server import FakeApiServer
from tests.helm.rendering import chart

NAMESPACE = "prod"


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


@pytest.fixture
def helm(api: FakeApiServer) -> Iterator[helm_python.Config]:
    with helm_python.Config(
        kubeconfig_content=api.kubeconfig(NAMESPACE), namespace=NAMESPACE, storage_driver="memory"
    ) as config:
        yield config


def held(api: FakeApiServer) -> dict[str, str]:
    """The Secret as the cluster has it, decoded."""
    (secret,) = api.find("v1", "secrets", NAMESPACE)
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def in_manifest(release: dict[str, Any]) -> dict[str, str]:
    """The Secret in a release's manifest, decoded."""
    (secret,) = [m for m in yaml.safe_load_all(release["manifest"]) if m and m["kind"] == "Secret"]
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_an_upgrade_keeps_the_generated_secrets(
    api: FakeApiServer, helm: helm_python.Config
) -> None:
    helm.install(chart(), "triptych", {"model": "demo"})
    generated = held(api)
    assert {len(value) for value in generated.values()} == {43}
    assert generated["api-key"] != generated["cluster-token"]

    planned = helm.upgrade(
        chart(), "triptych", {"model": "demo", "blockSize": 32}, dry_run="server"
    )
    assert in_manifest(planned) == generated
    assert held(api) == generated

    helm.upgrade(chart(), "triptych", {"model": "demo", "blockSize": 32})
    assert held(api) == generated


def test_rendering_without_a_cluster_makes_new_ones(helm: helm_python.Config) -> None:
    """Why tools that only render need auth.existingSecret."""
    texts = [chart().render({"model": "demo"}, name="triptych") for _ in range(2)]
    secrets = [text["triptych/templates/shared/secret.yaml"] for text in texts]
    assert secrets[0] != secrets[1]


def test_a_key_that_is_given_replaces_the_generated_one_alone(
    api: FakeApiServer, helm: helm_python.Config
) -> None:
    helm.install(chart(), "triptych", {"model": "demo"})
    token = held(api)["cluster-token"]
    helm.upgrade(chart(), "triptych", {"model": "demo", "auth": {"apiKey": {"value": "mine"}}})
    assert held(api) == {"api-key": "mine", "cluster-token": token}


def test_switching_the_key_on_later_generates_it_and_keeps_the_token(
    api: FakeApiServer, helm: helm_python.Config
) -> None:
    off = {"model": "demo", "auth": {"apiKey": {"enabled": False}}}
    helm.install(chart(), "triptych", off)
    token = held(api)["cluster-token"]
    planned = in_manifest(helm.upgrade(chart(), "triptych", {"model": "demo"}, dry_run="server"))
    assert planned["cluster-token"] == token
    assert len(planned["api-key"]) == 43


def test_pods_are_rolled_by_the_secret_that_is_kept(
    api: FakeApiServer, helm: helm_python.Config
) -> None:
    """An upgrade that changes nothing restarts nothing."""
    first = helm.install(chart(), "triptych", {"model": "demo"})
    again = helm.upgrade(chart(), "triptych", {"model": "demo"}, dry_run="server")
    assert first["manifest"] == again["manifest"]
    assert held(api)
