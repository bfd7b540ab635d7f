"""What the chart promises of security, of leaving, and of who reaches whom."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.combinations import COMBINATIONS
from tests.helm.rendering import (
    Manifest,
    flat,
    main_container,
    of_kind,
    pods,
    render,
    render_text,
    serve_config,
    values,
)

SOME = ("standalone-default", "standalone-everything", "ray-default", "ray-everything")


def shm(pod: Manifest) -> int:
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    return int(volumes["shm"]["emptyDir"]["sizeLimit"])


def environment(pod: Manifest) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in main_container(pod)["env"]}


# --- security ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_every_container_is_confined(name: str) -> None:
    """Non-root, read-only root file system, seccomp, no capability but IPC_LOCK for RDMA."""
    for _, pod in pods(render(COMBINATIONS[name])):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] >= 10000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"] + spec.get("initContainers", []):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert set(security["capabilities"].get("add", [])) <= {"IPC_LOCK"}


def test_only_the_coordinator_has_a_token_and_it_lists_and_watches_endpoint_slices() -> None:
    manifests = render(COMBINATIONS["standalone-everything"])
    with_token = {
        name for name, pod in pods(manifests) if pod["spec"]["automountServiceAccountToken"]
    }
    assert with_token == {"triptych-coordinator"}
    (role,) = of_kind(manifests, "Role").values()
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    assert of_kind(manifests, "ClusterRole") == {}
    (binding,) = of_kind(manifests, "RoleBinding").values()
    account = of_kind(manifests, "Deployment")["triptych-coordinator"]["spec"]["template"]["spec"]
    assert binding["subjects"][0]["name"] == account["serviceAccountName"]


def test_in_mode_ray_only_a_head_that_scales_has_a_token() -> None:
    def tokens(name: str) -> set[str]:
        return {
            n
            for n, p in pods(render(COMBINATIONS[name]))
            if p["spec"]["automountServiceAccountToken"]
        }

    assert tokens("ray-default") == set()
    assert tokens("ray-scaled") == {"head"}


@pytest.mark.parametrize("name", SOME)
def test_secrets_are_in_the_secret_alone(name: str) -> None:
    texts = render_text(COMBINATIONS[name])
    texts.pop("shared/secret.yaml")
    for secret in ("a-key", "a-token", "YS1rZXk=", "YS10b2tlbg=="):
        assert all(secret not in text for text in texts.values())


def test_the_test_pod_has_the_api_key_and_not_the_cluster_token() -> None:
    found = environment(of_kind(render(values()), "Pod")["triptych-test"])
    assert "TRIPTYCH_API_KEY" in found
    assert "TRIPTYCH_CLUSTER_TOKEN" not in found


# --- who reaches whom -------------------------------------------------------------------------


def allowed(policy: Manifest) -> set[tuple[str, str]]:
    """(peer's component, port) of a policy; "*" for any."""
    found = set()
    for rule in policy["spec"]["ingress"]:
        ports = [str(p["port"]) for p in rule.get("ports", [])] or ["*"]
        for peer in rule.get("from", [{}]):
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            name = labels.get("app.kubernetes.io/component", "*")
            found |= {(name, port) for port in ports}
    return found


def test_only_peers_reach_workers_and_the_exchange() -> None:
    policies = of_kind(render(COMBINATIONS["standalone-tcp-only"]), "NetworkPolicy")
    scrape = ("*", "http")  # /metrics, from the cluster; the rest of HTTP asks for the key
    called = {("coordinator", "grpc"), ("coordinator", "http"), scrape}
    assert allowed(policies["triptych-encode"]) == called | {("prefill", "exchange")}
    assert allowed(policies["triptych-prefill"]) == called | {("decode", "exchange")}
    assert allowed(policies["triptych-decode"]) == called
    assert allowed(policies["triptych-render"]) == called | {
        ("encode", "exchange"),
        ("prefill", "exchange"),
    }
    assert allowed(policies["triptych-coordinator"]) == {("*", "http")}


def test_transports_that_pick_their_ports_open_all_of_them_to_the_same_peers() -> None:
    policies = of_kind(render(COMBINATIONS["standalone-default"]), "NetworkPolicy")
    assert ("prefill", "*") in allowed(policies["triptych-encode"])
    assert ("decode", "*") not in allowed(policies["triptych-encode"])


@pytest.mark.parametrize(
    ("name", "fetched", "fetchers"),
    [
        ("standalone-e-pd", "triptych-encode", {"prefill-decode"}),
        ("standalone-e-pd", "triptych-prefill-decode", set()),
        ("standalone-all", "triptych-render", {"all"}),
    ],
)
def test_topologies_open_what_their_stages_fetch(
    name: str, fetched: str, fetchers: set[str]
) -> None:
    policies = of_kind(render(COMBINATIONS[name]), "NetworkPolicy")
    peers = {peer for peer, port in allowed(policies[fetched]) if port in ("*", "exchange")}
    assert peers == fetchers


def test_every_pod_of_the_release_has_a_policy() -> None:
    manifests = render(COMBINATIONS["standalone-default"])
    selected = [
        p["spec"]["podSelector"]["matchLabels"]
        for p in of_kind(manifests, "NetworkPolicy").values()
    ]
    for name, pod in pods(manifests):
        labels = pod["metadata"]["labels"].items()
        assert name == "triptych-test" or any(s.items() <= labels for s in selected), name


def test_named_clients_alone_reach_the_front_door() -> None:
    policy = of_kind(render(COMBINATIONS["standalone-closed-off"]), "NetworkPolicy")[
        "triptych-coordinator"
    ]
    peers = policy["spec"]["ingress"][0]["from"]
    assert peers[0] == {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    assert "test" in flat(peers[1])  # the test hook's pod


def test_inside_a_ray_cluster_all_is_open_and_from_outside_the_front_door() -> None:
    (policy,) = of_kind(render(COMBINATIONS["ray-default"]), "NetworkPolicy").values()
    first, *others = policy["spec"]["ingress"]
    assert "ports" not in first
    assert "ray.io/is-ray-node" in flat(first["from"])
    assert all("ports" in rule for rule in others)


def test_media_are_fetched_from_public_addresses_only() -> None:
    policy = of_kind(render(COMBINATIONS["standalone-egress"]), "NetworkPolicy")["triptych-render"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "169.254.0.0/16" in flat(policy["spec"]["egress"])


# --- leaving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_a_replica_stays_until_its_leases_are_over(name: str) -> None:
    given = COMBINATIONS[name]
    for pod_name, pod in pods(render(given)):
        if pod_name == "triptych-test":
            continue
        command, seconds = main_container(pod)["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        assert int(seconds) > 30, "the default lease"
        assert pod["spec"]["terminationGracePeriodSeconds"] >= int(seconds) + 300


def test_serve_lets_streams_end_before_the_pod_goes() -> None:
    for application in serve_config(render(COMBINATIONS["ray-default"]))["applications"]:
        assert application["args"]["config"]["drain_s"] == 300


def test_each_component_has_a_budget_for_disruptions() -> None:
    manifests = render(COMBINATIONS["standalone-default"])
    assert (
        of_kind(manifests, "PodDisruptionBudget").keys() == of_kind(manifests, "Deployment").keys()
    )


# --- resources --------------------------------------------------------------------------------


def test_rdma_gives_devices_pages_locked_memory_and_ucx() -> None:
    for name in ("standalone-rdma", "ray-rdma"):
        found = dict(pods(render(COMBINATIONS[name])))
        pod = found.get("encode") or found["triptych-encode"]
        container = main_container(pod)
        limits = container["resources"]["limits"]
        assert limits["rdma/ib"] == "2"
        assert limits["hugepages-2Mi"] == "1Gi"
        assert limits["nvidia.com/gpu"] == "1"
        assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        assert environment(pod)["UCX_NET_DEVICES"] == "mlx5_0:1"
        assert {"name": "hugepages", "mountPath": "/dev/hugepages"} in container["volumeMounts"]
        coordinator = found.get("coordinator") or found["triptych-coordinator"]
        assert "rdma" not in flat(coordinator["spec"])


def test_shared_memory_holds_the_store() -> None:
    found = dict(pods(render(COMBINATIONS["standalone-default"])))
    assert shm(found["triptych-encode"]) > 4 * 2**30
    assert shm(found["triptych-render"]) > 2**30


def test_startup_waits_for_loading_as_long_as_it_is_told() -> None:
    found = dict(pods(render(values(stages={"decode": {"startupSeconds": 3600}}))))
    probe = main_container(found["triptych-decode"])["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600


def test_a_model_of_the_hub_is_downloaded_before_the_server_starts_offline() -> None:
    found = dict(pods(render(COMBINATIONS["standalone-model-gated"])))
    weights, light = found["triptych-decode"], found["triptych-render"]
    for pod, what in ((weights, "weights"), (light, "configuration")):
        (init,) = pod["spec"]["initContainers"]
        assert init["args"][1:] == ["Qwen/Qwen3-VL-8B-Instruct", "v1", what]
        assert environment(pod)["HF_HUB_OFFLINE"] == "1"
        assert environment(pod)["HF_TOKEN"]["secretKeyRef"]["name"] == "hub"
    demo = dict(pods(render(COMBINATIONS["standalone-demo"])))
    assert "initContainers" not in demo["triptych-decode"]["spec"]


def test_a_change_of_configuration_or_secret_rolls_the_pods() -> None:
    def checksums(**more: Any) -> dict[str, str]:
        pod = dict(pods(render(values(**more))))["triptych-encode"]
        annotations = pod["metadata"]["annotations"]
        return {k: v for k, v in annotations.items() if k.startswith("checksum/")}

    plain = checksums()
    assert checksums(blockSize=32)["checksum/config"] != plain["checksum/config"]
    assert (
        checksums(auth={"clusterToken": {"value": "b"}})["checksum/secret"]
        != plain["checksum/secret"]
    )
    assert checksums(coordinator={"requestTimeoutSeconds": 9}) == plain


def test_scaled_components_leave_replicas_to_the_scaler() -> None:
    manifests = render(COMBINATIONS["standalone-keda"])
    scalers = of_kind(manifests, "ScaledObject")
    deployments = of_kind(manifests, "Deployment")
    assert scalers.keys() == deployments.keys()
    assert all("replicas" not in d["spec"] for d in deployments.values())
    assert (
        of_kind(render(COMBINATIONS["standalone-scaled"]), "HorizontalPodAutoscaler").keys()
        == scalers.keys()
    )


def test_in_mode_ray_serve_and_the_pods_scale_between_the_same_bounds() -> None:
    manifests = render(COMBINATIONS["ray-scaled"])
    (service,) = of_kind(manifests, "RayService").values()
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"] is True
    group = next(g for g in cluster["workerGroupSpecs"] if g["groupName"] == "encode")
    stages, _ = serve_config(manifests)["applications"]
    (encode,) = [d for d in stages["deployments"] if d["name"] == "encode"]
    scaling = encode["autoscaling_config"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 4)
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)
    assert scaling["target_ongoing_requests"] == 16


def test_tls_ends_at_the_ingress_or_the_gateway() -> None:
    manifests = render(COMBINATIONS["standalone-everything"])
    (ingress,) = of_kind(manifests, "Ingress").values()
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}]
    (gateway,) = of_kind(manifests, "Gateway").values()
    assert {listener["protocol"] for listener in gateway["spec"]["listeners"]} == {"HTTPS"}
    (route,) = of_kind(manifests, "HTTPRoute").values()
    assert route["spec"]["parentRefs"] == [{"name": "triptych"}]
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "600s"}


@pytest.mark.parametrize("mode", ["standalone", "ray"])
def test_what_stands_before_the_front_door_names_its_service(mode: str) -> None:
    manifests = render(COMBINATIONS[f"{mode}-gateway"])
    if mode == "standalone":
        service = of_kind(manifests, "Service")["triptych"]
    else:
        service = of_kind(manifests, "RayService")["triptych"]["spec"]["serveService"]
    (route,) = of_kind(manifests, "HTTPRoute").values()
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"] == service["spec"]["ports"][0]["port"]
