"""Settings of one process's EC connector."""

from __future__ import annotations

import importlib.util
import ipaddress
from typing import Literal

import msgspec

from protocol.errors import InvalidRequest

_UNSPECIFIED = frozenset({"", "0.0.0.0", "::"})


class EcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a process holds and moves items.

    Attributes:
        host, port: where the exchange listens; port 0 picks a free one.
        advertise_host: the host that descriptors name, `host` where empty.
        capacity_bytes: size of the store's region.
        memory: `pinned` locks the pages of the store and of other memory that is allocated here for
            CUDA, which then copies from and to it at full speed; needs a CUDA device.
        cluster_token: the secret that peers prove to know; may be empty on loopback only.
        transports: names to use, best first; empty for all that are installed.
        allowed_hosts: hosts that unsigned descriptors may name.
        lease_s: how long a published item or a read is kept unless extended.
        max_item_bytes: largest item that is published or fetched.
        shm_dir: a directory that the connectors of this host share, needed for `shm` between
            network namespaces (pods) only; without it nothing is put into a file system.
        connect_timeout_s: most time to reach a peer.
        tcp_streams: connections that a large item is striped over with `tcp`; more than one pays
            where one core cannot fill the network.
        tls_cert, tls_key, tls_ca: certificate, key and authority for mutual TLS on the data
            connections of `tcp`. Transports that cannot encrypt are then for `ec.transports` to
            leave out.
        checksum: take a CRC32C of what is published; consumers check it. Needs the extra
            `checksum`.
        check_finite: refuse to publish infinities and NaNs.
        threads: threads that copy and move large items.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str = ""
    capacity_bytes: int = 512 * 2**20
    memory: Literal["host", "pinned"] = "host"
    cluster_token: str = ""
    transports: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    lease_s: float = 30.0
    max_item_bytes: int = 2**30
    shm_dir: str = ""
    connect_timeout_s: float = 5.0
    tcp_streams: int = 1
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    checksum: bool = False
    check_finite: bool = True
    threads: int = 16

    def __post_init__(self) -> None:
        for name in (
            "capacity_bytes",
            "lease_s",
            "max_item_bytes",
            "connect_timeout_s",
            "threads",
            "tcp_streams",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if len({bool(name) for name in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise ValueError("tls_cert, tls_key and tls_ca go together")
        if not 0 <= self.port < 65536:
            raise ValueError("port must be between 0 and 65535")

    @property
    def advertised(self) -> str:
        """The host that peers connect to."""
        return self.advertise_host or self.host

    def check_usable(self) -> None:
        """Refuse addresses that cannot work or must not be open.

        Raises:
            InvalidRequest: names the option.
        """
        if self.advertised in _UNSPECIFIED:
            raise InvalidRequest(
                f"advertise_host must name an address of this machine where host is {self.host!r}",
                "ec.advertise_host",
            )
        if not self.cluster_token and not is_loopback(self.host):
            raise InvalidRequest(
                f"an exchange on {self.host} needs a cluster token", "ec.cluster_token"
            )
        if self.checksum and importlib.util.find_spec("google_crc32c") is None:
            raise InvalidRequest("the extra `checksum` is not installed", "ec.checksum")


def is_loopback(host: str) -> bool:
    """Whether an address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
