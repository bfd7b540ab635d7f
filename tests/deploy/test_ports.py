"""Whether a port is free, who holds it, and picking free ones."""

from __future__ import annotations

import os
import socket

import pytest

from deploy.ports import PortTaken, free_block, free_ports, require_free
from protocol.errors import InvalidRequest


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken) as refused:
            require_free("127.0.0.1", port)
    assert refused.value.message.startswith(f"port {port} is taken by pid {os.getpid()} (")


def test_a_port_that_is_free_again_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    require_free("127.0.0.1", port)
    require_free("localhost", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortTaken, match=r"cannot listen on 192\.0\.2\.123:9"):
        require_free("192.0.2.123", 9999)


def test_a_name_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(PortTaken, match="is not an address of this machine"):
        require_free("no-such-host.invalid", 9999)


def test_free_ports_are_different() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8


def test_a_block_is_consecutive_and_free() -> None:
    block = free_block(16)
    assert len(block) == 16
    for port in block:
        require_free("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidRequest, match="is not a port"):
        require_free("127.0.0.1", port)
