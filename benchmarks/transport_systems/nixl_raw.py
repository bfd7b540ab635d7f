"""NIXL READ of registered memory, polled without pause."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def _agent(name: str) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    agent = _agent("server")
    source = np.full(settings.largest, BYTE, np.uint8)
    agent.register_memory([(source.ctypes.data, source.nbytes, 0, "")], "DRAM")
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    listening([metadata, source.ctypes.data])
    until_told()


def measure(settings: Settings) -> list[list[float]]:
    agent = _agent("client")
    target = np.zeros(settings.span, np.uint8)
    agent.register_memory([(target.ctypes.data, target.nbytes, 0, "")], "DRAM")
    metadata, remote = settings.address
    server = agent.add_remote_agent(base64.b64decode(metadata))

    def move(size: int, many: int) -> None:
        there = agent.get_xfer_descs([(remote, size, 0)], "DRAM")
        handles = []
        for index in range(many):
            here = agent.get_xfer_descs([(target.ctypes.data + index * size, size, 0)], "DRAM")
            handles.append(agent.initialize_xfer("READ", here, there, server))
        under_way = [handle for handle in handles if agent.transfer(handle) != "DONE"]
        while under_way:
            states = [(handle, agent.check_xfer_state(handle)) for handle in under_way]
            assert all(state != "ERR" for _, state in states)
            under_way = [handle for handle, state in states if state == "PROC"]
        for handle in handles:
            agent.release_xfer_handle(handle)

    results = [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]
    assert target[0] == BYTE
    return results


if __name__ == "__main__":
    run(serve, measure)
