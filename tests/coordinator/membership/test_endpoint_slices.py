"""Listing and watching EndpointSlices over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from coordinator.membership.endpoint_slices import Access, Endpoint, EndpointSlices
from protocol.errors import InvalidRequest
from tests.helm.endpoints import Pod, endpoint_slice
from tests.helm.fake_api_server import FakeApiServer

LABELS = {"app.kubernetes.io/instance": "a", "triptych/discovery": "replicas"}
SELECTOR = "app.kubernetes.io/instance=a,triptych/discovery=replicas"
PORTS = {"grpc": 9001, "http": 8001}

Views = AsyncGenerator[frozenset[Endpoint], None]


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


def put(api: FakeApiServer, name: str, *pods: Pod) -> None:
    api.put(endpoint_slice(name, pods, PORTS, labels=LABELS))


def slices(
    api: FakeApiServer, account: Path = Path("/nonexistent"), **more: float
) -> EndpointSlices:
    return EndpointSlices(Access(api.url, "prod", account), SELECTOR, **more)


async def view(views: Views) -> list[str]:
    async with asyncio.timeout(5):
        return sorted(endpoint.address for endpoint in await anext(views))


async def until(views: Views, *addresses: str) -> None:
    while await view(views) != sorted(addresses):
        pass


async def test_the_first_view_is_what_is_there_and_changes_follow(api: FakeApiServer) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    async with aclosing(slices(api).follow()) as views:
        assert await view(views) == ["10.0.0.1:9001"]
        put(api, "encode-1", Pod("10.0.0.1", "a"), Pod("10.0.0.2", "b"))
        assert await view(views) == ["10.0.0.1:9001", "10.0.0.2:9001"]
        put(api, "decode-1", Pod("10.0.0.3", "c"))
        assert await view(views) == ["10.0.0.1:9001", "10.0.0.2:9001", "10.0.0.3:9001"]
        put(api, "encode-1", Pod("10.0.0.2", "b"))
        assert await view(views) == ["10.0.0.2:9001", "10.0.0.3:9001"]
        api.remove("discovery.k8s.io/v1", "endpointslices", "prod", "decode-1")
        assert await view(views) == ["10.0.0.2:9001"]
        put(api, "encode-1")
        assert await view(views) == []


async def test_only_ready_pods_of_the_selector_and_namespace_are_seen(api: FakeApiServer) -> None:
    put(
        api,
        "encode-1",
        Pod("10.0.0.1", "a", ready=False),
        Pod("10.0.0.2", "b", ready=False, terminating=True),
        Pod("10.0.0.3", "c", ready=None),
        Pod("10.0.0.4", "d", terminating=True),
    )
    api.put(endpoint_slice("other", [Pod("10.0.0.5", "e")], PORTS, labels={"a": "b"}))
    api.put(endpoint_slice("far", [Pod("10.0.0.6", "f")], PORTS, namespace="dev", labels=LABELS))
    api.put(endpoint_slice("portless", [Pod("10.0.0.7", "g")], {"http": 1}, labels=LABELS))
    async with aclosing(slices(api).follow()) as views:
        assert await view(views) == ["10.0.0.3:9001"]


async def test_an_endpoint_in_two_slices_counts_once_and_ipv6_is_bracketed(
    api: FakeApiServer,
) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    put(api, "encode-2", Pod("10.0.0.1", "a"))
    put(api, "encode-3", Pod("fd00::1", "b"))
    async with aclosing(slices(api).follow()) as views:
        assert await view(views) == ["10.0.0.1:9001", "[fd00::1]:9001"]


async def test_a_watch_that_ends_goes_on_where_it_stopped(api: FakeApiServer) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    async with aclosing(slices(api).follow()) as views:
        await until(views, "10.0.0.1:9001")
        following = asyncio.create_task(view(views))
        await asyncio.sleep(0.05)
        api.end_watches()
        put(api, "encode-1", Pod("10.0.0.2", "b"))
        assert await following == ["10.0.0.2:9001"]
    paths = [request for request in api.requests if request.query.get("watch") != "true"]
    assert len(paths) == 1, "it was listed again"


async def test_history_that_is_gone_is_listed_again(api: FakeApiServer) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    async with aclosing(slices(api).follow()) as views:
        await until(views, "10.0.0.1:9001")
        following = asyncio.create_task(until(views, "10.0.0.9:9001"))
        await asyncio.sleep(0.05)
        api.lose_event(endpoint_slice("encode-1", [Pod("10.0.0.9", "z")], PORTS, labels=LABELS))
        api.forget_history()
        await following


async def test_an_event_that_was_lost_is_made_up_for_by_the_resync(api: FakeApiServer) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    async with aclosing(slices(api, resync_s=0.3).follow()) as views:
        await until(views, "10.0.0.1:9001")
        api.lose_event(endpoint_slice("encode-1", [Pod("10.0.0.9", "z")], PORTS, labels=LABELS))
        await until(views, "10.0.0.9:9001")


@pytest.mark.parametrize("refusal", [500, 403, 410])
async def test_an_api_server_that_refuses_is_asked_again(api: FakeApiServer, refusal: int) -> None:
    put(api, "encode-1", Pod("10.0.0.1", "a"))
    async with aclosing(slices(api).follow()) as views:
        await until(views, "10.0.0.1:9001")
        following = asyncio.create_task(until(views, "10.0.0.2:9001"))
        api.refuse(refusal)
        await asyncio.sleep(0.3)
        assert not following.done(), "the last view stands"
        api.refuse(0)
        put(api, "encode-1", Pod("10.0.0.2", "b"))
        await following


async def test_the_token_is_read_before_each_request(api: FakeApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    async with aclosing(slices(api, tmp_path).follow()) as views:
        await view(views)
        (tmp_path / "token").write_text("second\n")
        following = asyncio.create_task(view(views))
        await asyncio.sleep(0.05)
        api.end_watches()
        put(api, "encode-1", Pod("10.0.0.1", "a"))
        await following
    sent = [request.headers["Authorization"] for request in api.requests]
    assert sent[0] == "Bearer first"
    assert sent[-1] == "Bearer second"


def test_access_comes_from_the_pods_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::a")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "namespace").write_text("prod")
    found = Access.find(account=tmp_path)
    assert (found.url, found.namespace) == ("https://[fd00::a]:6443", "prod")
    assert found.headers() == {}
    assert Access.find("http://127.0.0.1:8001/", "dev", tmp_path).url == "http://127.0.0.1:8001"


def test_outside_of_a_pod_both_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidRequest, match="--kubernetes-api"):
        Access.find(account=tmp_path)
    with pytest.raises(InvalidRequest, match="--kubernetes-namespace"):
        Access.find("http://127.0.0.1:8001", account=tmp_path)
