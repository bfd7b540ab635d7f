"""A cluster of worker processes that can be killed and replaced, or stopped and continued.

A replacement listens where its predecessor did, as a restarted pod behind a stable name does, and
is another replica: it has a new id and holds nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.nursery import Nursery
from tests.cluster.processes import (
    Processes,
    ServerProcess,
    eventually,
    server_environment,
)

MODEL = "triptych-demo"
_BACK_S = 120.0
_NOTICED_S = 60.0


@dataclass(slots=True)
class Slot:
    """Where one replica after the other runs."""

    role: str
    name: str
    process: ServerProcess
    restarts: int = 0


@dataclass(slots=True)
class Cluster:
    """Running replicas and their coordinators.

    Attributes:
        buried: pids of the processes that were killed.
    """

    processes: Processes
    slots: list[Slot]
    coordinators: list[ServerProcess] = field(default_factory=list)
    buried: list[int] = field(default_factory=list)

    @property
    def coordinator(self) -> ServerProcess:
        """The first coordinator."""
        return self.coordinators[0]

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"{self.coordinator.http}/v1/chat/completions"

    def of(self, role: str) -> list[Slot]:
        """The slots of a role."""
        return [slot for slot in self.slots if slot.role == role]

    def ready(self, role: str) -> int:
        """How many replicas of a role every coordinator calls ready."""
        sample = f'triptych_replicas_ready{{role="{role}"}}'
        return int(min(door.metrics().get(sample, 0) for door in self.coordinators))

    def kill(self, slot: Slot) -> None:
        """SIGKILL the replica: its children learn of it by themselves."""
        self.buried.append(slot.process.pid)
        os.kill(slot.process.pid, signal.SIGKILL)
        slot.process.wait(10)

    def replace(self, slot: Slot) -> None:
        """Start a successor, and wait until the coordinators know that it is ready."""
        slot.restarts += 1
        port = int(slot.process.grpc.rpartition(":")[2])
        name = f"{slot.name}-{slot.restarts}"
        slot.process = _start(self.processes, slot.role, name, port)
        self.processes.ready(_BACK_S)
        self.wait_all(slot.role)

    def wait_all(self, role: str) -> None:
        """Until every replica of the role is ready."""
        with eventually(_BACK_S, f"all {role} replicas are ready") as attempts:
            for _ in attempts:
                if self.ready(role) == len(self.of(role)):
                    return

    def hang(self, slot: Slot, seconds: float = 0.0) -> None:
        """SIGSTOP the replica until the coordinators do without it, for `seconds` at least.

        Then SIGCONT, and wait until they count on it again.
        """
        ends = time.monotonic() + seconds
        family = [one.pid for one in slot.process.family()]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            with eventually(_NOTICED_S, f"{slot.name} is missed") as attempts:
                for _ in attempts:
                    missed = self.ready(slot.role) < len(self.of(slot.role))
                    if missed and time.monotonic() >= ends:
                        break
        finally:
            for pid in family:
                os.kill(pid, signal.SIGCONT)
        self.wait_all(slot.role)

    def orphans(self) -> list[int]:
        """Processes that outlived the killed ones that had started them."""
        return [pid for leader in self.buried for pid in _session(leader) if pid != leader]


@contextmanager
def running(
    directory: Path,
    counts: Mapping[str, int],
    *,
    coordinators: int = 1,
    **config: Any,
) -> Iterator[Cluster]:
    """Start replicas of the demo model, one thread each, and coordinators over all of them.

    Args:
        directory: for logs.
        counts: role -> replicas, render included.
        coordinators: how many.
        config: keys of CoordinatorConfig.
    """
    environment = server_environment(1, {})
    with (
        Nursery(environment) as nursery,
        Processes(directory, nursery.start) as processes,
        Processes(directory) as doors,  # gRPC's clients do not survive a fork
    ):
        slots = []
        for role, count in counts.items():
            for index in range(count):
                name = f"{role}-{index}"
                slots.append(Slot(role, name, _start(processes, role, name, 0)))
        processes.ready(400)
        cluster = Cluster(processes, slots)
        addresses = [slot.process.grpc for slot in slots]
        for index in range(coordinators):
            door = doors.coordinator(addresses, f"coordinator-{index}", **config)
            cluster.coordinators.append(door)
        doors.ready(200)
        for role in counts:
            cluster.wait_all(role)
        yield cluster


def _start(processes: Processes, role: str, name: str, grpc_port: int) -> ServerProcess:
    command = ["render", "demo"] if role == "render" else ["worker", "demo", "--role", role]
    config: dict[str, Any] = {"served_model_name": MODEL}
    config |= {"processes": 1} if role == "render" else {"threads": 1}
    ports = ["--port", "0", "--grpc-port", str(grpc_port)]
    return processes.start(name, [*command, *ports], config)


def _session(leader: int) -> list[int]:
    """Running processes of the session that a process began."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, session = (
                (entry / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[:4]
            )
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(entry.name))
    return found
