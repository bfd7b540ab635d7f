"""The rendered pods as processes of this machine: a kubelet and an endpoint controller in small.

Each pod gets a loopback address of its own, so that fixed ports do not clash. Environment,
arguments, ConfigMaps, probes and preStop hooks are those of the manifests. Not reproduced: images,
limits, security contexts, volumes other than ConfigMaps, DNS (the test hook's URL is resolved by
`resolve`), network policies.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.helm.endpoints import Pod as Listed
from tests.helm.endpoints import endpoint_slice
from tests.helm.fake_api_server import FakeApiServer
from tests.helm.rendering import Manifest, main_container, of_kind

_PERIOD_S = 0.2
_RESTARTS = 2
"""How often a container that ends is started again, as restartPolicy Always does."""


@dataclass
class LocalPod:
    """One pod: its process and what probes found."""

    name: str
    address: str
    spec: Manifest
    process: subprocess.Popen[bytes]
    log: Path
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    ready: bool = False
    terminating: bool = False
    restarts: int = 0

    @property
    def component(self) -> str:
        component: str = self.spec["metadata"]["labels"]["app.kubernetes.io/component"]
        return component


class LocalCluster:
    """Runs the Deployments of rendered manifests against a fake API server while entered.

    Args:
        manifests: what the chart rendered.
        api: where the EndpointSlices are written.
        folder: for ConfigMaps and logs.
    """

    def __init__(self, manifests: list[Manifest], api: FakeApiServer, folder: Path) -> None:
        self.manifests = manifests
        self.pods: list[LocalPod] = []
        self._api = api
        self._folder = folder
        self._numbers = itertools.count(1)
        self._network = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250}"
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._kubelet = threading.Thread(target=self._run)

    def __enter__(self) -> LocalCluster:
        for name, deployment in of_kind(self.manifests, "Deployment").items():
            for _ in range(deployment["spec"].get("replicas", 1)):
                self.start(name)
        self._kubelet.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._kubelet.join()
        for pod in self.pods:
            pod.process.terminate()
        for pod in self.pods:
            try:
                pod.process.wait(15)
            except subprocess.TimeoutExpired:
                pod.process.kill()
                pod.process.wait()
        if error is not None:
            for pod in self.pods:
                sys.stderr.write(f"--- {pod.name}\n{pod.log.read_text()[-3000:]}\n")

    # --- what tests do ------------------------------------------------------------------------

    def start(self, deployment: str) -> LocalPod:
        """One more pod of a Deployment."""
        template = of_kind(self.manifests, "Deployment")[deployment]["spec"]["template"]
        number = next(self._numbers)
        pod = self._start(f"{deployment}-{number}", f"{self._network}.{number}", template)
        with self._lock:
            self.pods.append(pod)
        return pod

    def delete(self, pod: LocalPod) -> int:
        """As the kubelet does it: unlisted, preStop, the signal, the grace period; exit status."""
        pod.terminating = True
        self._list_endpoints()
        hook = main_container(pod.spec)["lifecycle"]["preStop"]["exec"]["command"]
        began = time.monotonic()
        subprocess.run(hook, check=True)
        pod.process.send_signal(signal.SIGTERM)
        grace = pod.spec["spec"]["terminationGracePeriodSeconds"]
        status = pod.process.wait(grace - (time.monotonic() - began))
        with self._lock:
            self.pods.remove(pod)
        self._list_endpoints()
        return status

    def replace(self, pod: LocalPod) -> LocalPod:
        """The node is gone: the process dies without a word, and the Deployment makes another."""
        pod.process.kill()
        pod.process.wait()
        with self._lock:
            self.pods.remove(pod)
        self._list_endpoints()
        return self.start(pod.name.rpartition("-")[0])

    def of(self, component: str) -> list[LocalPod]:
        """Pods of a component."""
        return [pod for pod in self.pods if pod.component == component]

    def wait_ready(self, component: str, count: int, seconds: float = 600.0) -> None:
        """Wait until so many pods of a component are ready."""
        until = time.monotonic() + seconds
        while sum(pod.ready and not pod.terminating for pod in self.of(component)) != count:
            for pod in [pod for pod in self.pods if pod.process.poll() is not None]:
                assert pod.restarts < _RESTARTS, f"{pod.name} ended:\n{pod.log.read_text()[-3000:]}"
                self._restart(pod)
            assert time.monotonic() < until, f"{component} did not become ready"
            time.sleep(_PERIOD_S)

    def resolve(self, url: str) -> str:
        """A URL with a Service's name, with an address and port of a ready pod instead."""
        service, port = re.fullmatch(r"http://([a-z0-9-]+)\.[a-z0-9-]+\.svc:(\d+)", url).groups()  # type: ignore[union-attr]
        spec = of_kind(self.manifests, "Service")[service]["spec"]
        (target,) = [p["targetPort"] for p in spec["ports"] if str(p["port"]) == port]
        (pod, *_) = [p for p in self.pods if p.ready and _selects(spec["selector"], p)]
        return f"http://{pod.address}:{_port(pod, target)}"

    def run_test_hook(self) -> subprocess.CompletedProcess[str]:
        """What `helm test` does: the hook's pod to its end."""
        return run_test_hook(self.manifests, self.resolve, self._folder)

    # --- kubelet and endpoint controller ------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            with self._lock:
                pods = list(self.pods)
            before = [pod.ready for pod in pods]
            for pod in pods:
                pod.ready = pod.process.poll() is None and self._probe(pod, "readinessProbe")
            if [pod.ready for pod in pods] != before:
                self._list_endpoints()

    def _probe(self, pod: LocalPod, which: str) -> bool:
        probe = main_container(pod.spec)[which]
        get = probe["httpGet"]
        url = f"http://{pod.address}:{_port(pod, get['port'])}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
                return bool(200 <= answer.status < 400)
        except (urllib.error.URLError, OSError):
            return False

    def _list_endpoints(self) -> None:
        with self._lock:
            for name, service in of_kind(self.manifests, "Service").items():
                meta, spec = service["metadata"], service["spec"]
                chosen = [pod for pod in self.pods if _selects(spec["selector"], pod)]
                ports = {
                    p["name"]: _port(pod, p["targetPort"]) for pod in chosen for p in spec["ports"]
                }
                listed = [
                    Listed(pod.address, pod.uid, pod.ready and not pod.terminating, pod.terminating)
                    for pod in chosen
                ]
                self._api.put(
                    endpoint_slice(
                        f"{name}-local",
                        listed,
                        ports,
                        namespace=meta["namespace"],
                        labels={**meta["labels"], "kubernetes.io/service-name": name},
                    )
                )

    def _restart(self, pod: LocalPod) -> None:
        """A container that ended is started again in its pod."""
        again = self._start(pod.name, pod.address, pod.spec)
        pod.process = again.process
        pod.restarts += 1

    def _start(self, name: str, address: str, template: Manifest) -> LocalPod:
        container = main_container(template)
        fields = {"status.podIP": address, "metadata.name": name}
        environment = environment_of(self.manifests, template, fields)
        here = mounts(self.manifests, template, self._folder)
        command = localized([*container["command"], *container["args"]], environment, here)
        command = found(command)
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        return LocalPod(name, address, template, process, log)


def environment_of(
    manifests: list[Manifest], pod: Manifest, fields: dict[str, str]
) -> dict[str, str]:
    """The environment of a pod's main container; `fields` is what the kubelet knows of the pod."""
    environment = local_environment()
    for entry in main_container(pod)["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            key = source["secretKeyRef"]
            data = of_kind(manifests, "Secret")[key["name"]]["data"]
            value = base64.b64decode(data[key["key"]]).decode()
        else:
            value = entry["value"]
        environment[entry["name"]] = value
    return environment


def mounts(manifests: list[Manifest], pod: Manifest, folder: Path) -> dict[str, str]:
    """Where the pod sees a ConfigMap -> where it is here, below `folder`."""
    found = {}
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    for mount in main_container(pod)["volumeMounts"]:
        source = volumes[mount["name"]].get("configMap")
        if source is not None:
            config = of_kind(manifests, "ConfigMap")[source["name"]]
            found[mount["mountPath"]] = str(_written(config, folder))
    return found


def _written(config: Manifest, folder: Path) -> Path:
    place = folder / f"configmap-{config['metadata']['name']}"
    place.mkdir(exist_ok=True)
    for file, text in config.get("data", {}).items():
        (place / file).write_text(text)
    for file, data in config.get("binaryData", {}).items():
        (place / file).write_bytes(base64.b64decode(data))
    return place


def free_ports(count: int) -> list[int]:
    """Different ports that are free on every interface."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_test_hook(
    manifests: list[Manifest], resolve: Callable[[str], str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """The chart's test hook as a process; `resolve` stands in for DNS."""
    (pod,) = [
        p for p in of_kind(manifests, "Pod").values()
        if p["metadata"]["annotations"].get("helm.sh/hook") == "test"
    ]  # fmt: skip
    fields = {"status.podIP": "127.0.0.1", "metadata.name": "test"}
    environment = environment_of(manifests, pod, fields)
    environment["TRIPTYCH_URL"] = resolve(environment["TRIPTYCH_URL"])
    here = mounts(manifests, pod, folder)
    visible = {name: localized([value], {}, here)[0] for name, value in environment.items()}
    command = found(localized(main_container(pod)["command"], environment, here))
    return subprocess.run(
        command, env=visible, capture_output=True, text=True, check=False, timeout=300
    )


def local_environment() -> dict[str, str]:
    """What an image brings: a PATH with our commands, and this session's own marks."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {
        k: v
        for k, v in os.environ.items()
        if k.startswith(("TEST_SESSION", "OMP_", "LD_", "PYTHONPATH"))
    }
    return {**kept, "PATH": path}


def localized(command: list[Any], environment: dict[str, str], mounts: dict[str, str]) -> list[str]:
    """$(NAME) expanded as the kubelet does, and mounted files where they are here."""
    expanded = []
    for part in map(str, command):
        text = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], part)
        for inside, outside in mounts.items():
            if text.startswith(f"{inside}/"):
                text = outside + text.removeprefix(inside)
        expanded.append(text)
    return expanded


def found(command: list[str]) -> list[str]:
    """The command with its program where this environment has it."""
    here = Path(sys.executable).parent / command[0]
    return [str(here) if here.is_file() else command[0], *command[1:]]


def _selects(selector: dict[str, str], pod: LocalPod) -> bool:
    return selector.items() <= pod.spec["metadata"]["labels"].items()


def _port(pod: LocalPod, name: str | int) -> int:
    if isinstance(name, int):
        return name
    ports = {p["name"]: p["containerPort"] for p in main_container(pod.spec)["ports"]}
    return int(ports[name])
