"""Plain blocking TCP sockets: a request of eight bytes, the item back, a thread per flow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.transport_systems.base import BYTE, Settings, rounds, run, until_told


def serve(settings: Settings, listening: Callable[[Any], None]) -> None:
    source = memoryview(bytes([BYTE]) * settings.largest)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            while request := sock.recv(8, socket.MSG_WAITALL):
                sock.sendall(source[: int.from_bytes(request, "big")])

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    listening(listener.getsockname())
    until_told()


def measure(settings: Settings) -> list[list[float]]:
    target = memoryview(bytearray(settings.span))
    flows = [socket.create_connection(tuple(settings.address)) for _ in range(settings.most)]
    for flow in flows:
        flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threads = ThreadPoolExecutor(settings.most)

    def fetch(index: int, size: int) -> None:
        flow, into = flows[index], target[index * size : (index + 1) * size]
        flow.sendall(size.to_bytes(8, "big"))
        done = 0
        while done < size:
            done += flow.recv_into(into[done:], 0, socket.MSG_WAITALL)

    def move(size: int, many: int) -> None:
        if many == 1:
            fetch(0, size)
        else:
            list(threads.map(lambda index: fetch(index, size), range(many)))

    results = [rounds(settings, lambda s=size, m=many: move(s, m)) for size, many in settings.cases]
    assert target[0] == BYTE
    return results


if __name__ == "__main__":
    run(serve, measure)
