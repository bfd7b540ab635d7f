"""The servers that the cluster tests share: every role once or twice, and three front doors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Processes, ServerProcess
from tests.cluster.recorder import RecordingProxy

MODEL = "triptych-demo"

TOPOLOGIES = ("epd", "e_pd", "all")


@dataclass(frozen=True)
class Fleet:
    """Running servers of the demo model.

    Attributes:
        recorder: stands between the `epd` coordinator and the prefill replica.
        coordinators: topology -> its front door; they share render and the encode replicas.
    """

    processes: Processes
    render: ServerProcess
    encode: tuple[ServerProcess, ServerProcess]
    prefill: ServerProcess
    decode: ServerProcess
    prefill_decode: ServerProcess
    all: ServerProcess
    recorder: RecordingProxy
    coordinators: dict[str, ServerProcess]

    def url(self, topology: str = "epd") -> str:
        """Base URL of a topology's coordinator."""
        return self.coordinators[topology].http

    @property
    def workers(self) -> list[ServerProcess]:
        """Every worker."""
        return [*self.encode, self.prefill, self.decode, self.prefill_decode, self.all]

    def close(self) -> None:
        """End everything."""
        self.processes.stop(self.processes.all)
        self.recorder.close()


def start(directory: Path) -> Fleet:
    """Start all processes and wait until each is healthy.

    Raises:
        NotStarted: one is not; all are ended.
    """
    processes = Processes(directory)
    try:
        render = processes.render(served_model_name=MODEL)
        encode = (
            processes.worker("encode", "encode-0", served_model_name=MODEL),
            processes.worker("encode", "encode-1", served_model_name=MODEL),
        )
        prefill = processes.worker("prefill", served_model_name=MODEL)
        decode = processes.worker("decode", served_model_name=MODEL)
        fused = processes.worker("prefill_decode", served_model_name=MODEL)
        whole = processes.worker("all", served_model_name=MODEL)
        processes.ready()
        recorder = RecordingProxy(prefill.grpc)
        shared = [render.grpc, *(worker.grpc for worker in encode)]
        doors = {
            "epd": [*shared, recorder.address, decode.grpc],
            "e_pd": [*shared, fused.grpc],
            "all": [render.grpc, whole.grpc],
        }
        coordinators = {
            topology: processes.coordinator(
                addresses, f"coordinator-{topology}", enable_scale_out=True
            )
            for topology, addresses in doors.items()
        }
        processes.ready()
    except BaseException:
        processes.stop(processes.all)
        raise
    return Fleet(processes, render, encode, prefill, decode, fused, whole, recorder, coordinators)
