"""A client that goes away in the middle leaves nothing behind on any server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from examples.drawings import Example
from tests.cluster.asking import chat, unseen
from tests.cluster.fleet import TOPOLOGIES, Fleet
from tests.cluster.processes import ServerProcess

WORKER_GAUGES = (
    "triptych_worker_running_requests",
    "triptych_worker_waiting_requests",
    "triptych_worker_kv_blocks_used",
    "triptych_worker_kv_pinned_requests",
    "triptych_worker_ec_leases",
    "triptych_worker_ec_offers",
    "triptych_worker_encoder_waiting_items",
)


def held(process: ServerProcess, gauges: tuple[str, ...]) -> dict[str, float]:
    """The gauges that are not zero."""
    samples = process.metrics()
    return {name: samples[name] for name in gauges if samples.get(name)}


def everything_held(fleet: Fleet) -> dict[str, dict[str, float]]:
    """What any server still holds for a request."""
    found = {worker.name: held(worker, WORKER_GAUGES) for worker in fleet.workers}
    found["render"] = held(
        fleet.render,
        ("triptych_render_running", "triptych_ec_store_pinned", "triptych_ec_leases"),
    )
    for door in fleet.coordinators.values():
        found[door.name] = held(door, ("triptych_requests_running",))
    return {name: gauges for name, gauges in found.items() if gauges}


def assert_nothing_is_held(fleet: Fleet) -> None:
    left: dict[str, dict[str, float]] = {}
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        left = everything_held(fleet)
        if not left:
            return
    pytest.fail(f"not given back within 15 s: {left}")


def long_request(**fields: Any) -> dict[str, Any]:
    """A request with a picture that would run for a long time."""
    picture = unseen("describe", 1, seed=41)[0].images
    endless = {
        "max_tokens": 400,
        "ignore_eos": True,
        "skip_special_tokens": False,  # what comes after the answer is shown, too
        "stream": True,
    }
    return chat(Example(picture, "Describe this image.", ""), **{**endless, **fields})


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_leaving_a_stream_gives_everything_back(fleet: Fleet, topology: str) -> None:
    url = f"{fleet.url(topology)}/v1/chat/completions"
    with httpx.Client(timeout=30) as client, client.stream("POST", url, json=long_request()) as r:
        assert r.status_code == 200
        lines = r.iter_lines()
        seen = [next(lines) for _ in range(6)]
        assert any('"content"' in line for line in seen)
        assert everything_held(fleet)
    assert_nothing_is_held(fleet)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_leaving_a_request_that_is_not_streamed_gives_everything_back(
    fleet: Fleet, topology: str
) -> None:
    url = f"{fleet.url(topology)}/v1/chat/completions"
    body = long_request(stream=False, max_tokens=2000)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=httpx.Timeout(30, read=0.5))
    assert_nothing_is_held(fleet)


def test_a_killed_client_gives_everything_back(fleet: Fleet) -> None:
    program = textwrap.dedent(
        """
        import json, sys, httpx
        url, body = sys.argv[1], json.load(sys.stdin)
        with httpx.stream("POST", url, json=body, timeout=30) as response:
            for line in response.iter_lines():
                print(line, flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{fleet.url()}/v1/chat/completions"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdin
        assert client.stdout
        client.stdin.write(httpx.Request("POST", "http://x", json=long_request()).content)
        client.stdin.close()
        for _ in range(4):
            assert client.stdout.readline()
        client.kill()
    assert_nothing_is_held(fleet)


def test_sixteen_clients_that_leave_together_give_everything_back(fleet: Fleet) -> None:
    url = f"{fleet.url()}/v1/chat/completions"
    limits = httpx.Limits(max_connections=16)
    with httpx.Client(timeout=30, limits=limits) as client:
        responses = [
            client.send(
                client.build_request("POST", url, json=long_request(seed=index)), stream=True
            )
            for index in range(16)
        ]
        assert [response.status_code for response in responses] == [200] * 16
        for response in responses:
            response.close()
    assert_nothing_is_held(fleet)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_clients_that_leave_at_any_moment_give_everything_back(fleet: Fleet, topology: str) -> None:
    """Before the first byte, between two tokens, near the end; others stay to the end."""
    url = f"{fleet.url(topology)}/v1/chat/completions"

    def leave(index: int) -> None:
        body = long_request(max_tokens=60, seed=index)
        patience = httpx.Timeout(30, read=0.02 * index + 0.01 if index % 3 == 0 else 30)
        try:
            with httpx.stream("POST", url, json=body, timeout=patience) as response:
                for count, _ in enumerate(response.iter_lines()):
                    if index % 3 == 1 and count > index:
                        return
        except httpx.ReadTimeout:
            return

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(leave, range(36)))
    assert_nothing_is_held(fleet)


def test_a_worker_aborts_when_its_http_client_leaves(fleet: Fleet) -> None:
    body = {
        "token_ids": [1, 2, 3, 4],
        "sampling_params": {"max_tokens": 400, "ignore_eos": True},
        "stream": True,
    }
    url = f"{fleet.all.http}/inference/v1/generate"
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    assert_nothing_is_held(fleet)
