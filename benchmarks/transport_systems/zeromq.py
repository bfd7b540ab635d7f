"""ZeroMQ over TCP: the item as one message, without copies in Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import zmq

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    source = memoryview(bytes([BYTE]) * settings.largest)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    listening(f"tcp://127.0.0.1:{port}")
    threading.Thread(target=_end_when_told, daemon=True).start()
    while True:
        who, request = router.recv_multipart()
        router.send(who, zmq.SNDMORE)
        router.send(source[: int.from_bytes(request, "big")], copy=False)


def _end_when_told() -> None:
    until_told()
    os._exit(0)  # the socket's thread would go on


def measure(settings: Settings) -> list[list[float]]:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(settings.address)

    def move(size: int, many: int) -> None:
        for _ in range(many):
            dealer.send(size.to_bytes(8, "big"))
        for _ in range(many):
            frame = dealer.recv(copy=False)
            assert frame.buffer.nbytes == size

    return [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]


if __name__ == "__main__":
    run(serve, measure)
