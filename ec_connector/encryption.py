"""Mutual TLS between peers, where it is configured: the exchange, and the connections of `tcp`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import Executor

from ec_connector.config import EcConfig
from ec_connector.copying import finish
from protocol.errors import InvalidRequest

_HANDSHAKE_S = 10.0


class Encryption:
    """The contexts of both ends, from the configured files.

    Raises:
        InvalidRequest: a file that cannot be read or used.
    """

    def __init__(self, config: EcConfig) -> None:
        self.producer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.consumer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.producer.verify_mode = ssl.CERT_REQUIRED
        self.producer.num_tickets = 0  # a consumer takes what comes unasked for a fault
        # Peers are known by the cluster token and their authority, not by name.
        self.consumer.check_hostname = False
        for context in (self.producer, self.consumer):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            try:
                context.load_cert_chain(config.tls_cert, config.tls_key)
                context.load_verify_locations(config.tls_ca)
            except OSError as error:  # ssl.SSLError is one
                raise InvalidRequest(f"tls: {error}", "ec.tls_cert") from None

    @classmethod
    def of(cls, config: EcConfig) -> Encryption | None:
        """None where it is off."""
        return cls(config) if config.tls_cert else None

    async def wrap(
        self, sock: socket.socket, executor: Executor, *, producer: bool
    ) -> socket.socket:
        """The same connection, encrypted; closed where it raises.

        Raises:
            OSError: the handshake failed.
        """
        context = self.producer if producer else self.consumer

        def handshake() -> socket.socket:
            sock.settimeout(_HANDSHAKE_S)
            wrapped = context.wrap_socket(sock, server_side=producer)
            wrapped.settimeout(None)
            return wrapped

        try:
            loop = asyncio.get_running_loop()
            return await finish(loop.run_in_executor(executor, handshake))
        except BaseException:
            sock.close()
            raise
