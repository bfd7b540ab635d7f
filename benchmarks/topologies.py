"""The three ways to serve one model on one machine, with equally many threads.

Every worker has one thread, so a budget of three threads is three `all` replicas, or one encode and
two prefill_decode replicas, or one of each of the three roles. Threads inside a worker would be
compared with processes otherwise, which says more about the machine than about the split.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Processes, ServerProcess

MODEL = "triptych-demo"

ROLES: dict[str, tuple[str, ...]] = {
    "all": ("all",),
    "E+PD": ("encode", "prefill_decode"),
    "E+P+D": ("encode", "prefill", "decode"),
}
"""Topology -> the roles of its workers."""

FEWEST_THREADS = max(len(roles) for roles in ROLES.values())


@dataclass(frozen=True)
class Topology:
    """A running topology; render is shared by all of them."""

    name: str
    coordinator: ServerProcess
    workers: dict[str, ServerProcess]

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"{self.coordinator.http}/v1/chat/completions"


@dataclass(frozen=True)
class Fleet:
    """All topologies, running side by side; those that are not asked are idle."""

    render: ServerProcess
    topologies: dict[str, Topology]

    def processes(self) -> dict[str, ServerProcess]:
        """Every process by a name that says its topology."""
        found = {"render": self.render}
        for name, topology in self.topologies.items():
            found[f"{name} coordinator"] = topology.coordinator
            found |= {f"{name} {role}": worker for role, worker in topology.workers.items()}
        return found


def share(threads: int, roles: tuple[str, ...]) -> dict[str, int]:
    """Split threads over the roles of a topology; what does not divide goes to the last ones."""
    whole, rest = divmod(threads, len(roles))
    return {role: whole + (index >= len(roles) - rest) for index, role in enumerate(roles)}


@contextmanager
def running(directory: Path, threads: int, model: str = "demo") -> Iterator[Fleet]:
    """Start render, and of each topology the workers and a coordinator; end them all.

    Args:
        directory: for logs.
        threads: of each topology's workers together, at least FEWEST_THREADS.
        model: what the command line takes as MODEL.
    """
    with Processes(directory) as processes:
        render = processes.render(model=model, served_model_name=MODEL)
        workers = {
            name: {
                f"{role} {index}": processes.worker(
                    role, f"{name}-{role}-{index}", model, threads=1, served_model_name=MODEL
                )
                for role, count in share(threads, roles).items()
                for index in range(count)
            }
            for name, roles in ROLES.items()
        }
        processes.ready(400)
        coordinators = {
            name: processes.coordinator(
                [render.grpc, *(worker.grpc for worker in of_topology.values())],
                f"{name}-coordinator",
                model,
            )
            for name, of_topology in workers.items()
        }
        processes.ready(200)
        yield Fleet(
            render,
            {name: Topology(name, coordinators[name], workers[name]) for name in ROLES},
        )
