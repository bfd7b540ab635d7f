"""Ports: whether one is free and who holds it, and picking free ones."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator

import psutil

from protocol.errors import InvalidRequest, Unavailable

_RANGE = range(20_000, 30_000)
"""Where blocks are picked: below the kernel's ephemeral ports and below Ray's own."""


class PortTaken(Unavailable):
    """Somebody else listens there."""


def require_free(host: str, port: int) -> None:
    """Check that a server could listen on the address.

    Raises:
        PortTaken: names the process that holds it where that can be seen.
        InvalidRequest: there is no such port.
    """
    if not 0 < port < 2**16:
        raise InvalidRequest(f"{port} is not a port", "port")
    reason = _try(host, port)
    if reason is None:
        return
    raise PortTaken(f"port {port} is taken{_holder(port)}" if reason == "taken" else reason, "port")


def free_ports(count: int) -> list[int]:
    """Different ports that are free on every interface."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            sock = held.enter_context(socket.socket())
            sock.bind(("", 0))
            ports.append(int(sock.getsockname()[1]))
        return ports


def free_block(size: int) -> range:
    """Consecutive ports that are free on loopback.

    Raises:
        PortTaken: none was found.
    """
    for start in _starts(size):
        block = range(start, start + size)
        if all(_try("127.0.0.1", port) is None for port in block):
            return block
    raise PortTaken(f"no {size} consecutive free ports were found")


def _starts(size: int) -> Iterator[int]:
    starts = list(range(_RANGE.start, _RANGE.stop - size, size))
    yield from random.sample(starts, min(100, len(starts)))


def _try(host: str, port: int) -> str | None:
    """None, `taken`, or what else is wrong with the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        return f"{host} is not an address of this machine: {error.strerror}"
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen(1)
        except PermissionError:
            return f"port {port} needs root"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "taken"
            return f"cannot listen on {host}:{port}: {error.strerror}"
    return None


def _holder(port: int) -> str:
    """` by pid N (name)`, or nothing where it cannot be seen."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return ""
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN
        if listens and connection.laddr and connection.laddr.port == port and connection.pid:
            with contextlib.suppress(psutil.Error):
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
