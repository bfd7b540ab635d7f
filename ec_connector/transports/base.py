"""What a transport is: how bytes get from a region of the producer into buffers of the consumer.

The exchange grants leases and says where the bytes are; a transport only moves them. A plug-in
is a `Transport` in the entry-point group `triptych.transports`. It runs on the connector's event
loop and may not block it.

    Transport    one per process: registers memory, serves peers, links to peers
    Link         one per peer that this process reads from
    Channel      one per read: open, receive (or view), close
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

from ec_connector.config import EcConfig
from ec_connector.encryption import Encryption
from ec_connector.handshake import Secret
from ec_connector.messages import Granted
from ec_connector.regions import Region
from protocol.deadline import Deadline
from protocol.errors import TransferError


@dataclass(frozen=True, slots=True)
class Context:
    """What a transport gets from the process that it works for.

    Attributes:
        config: the connector's settings.
        secret: proves and checks the cluster token on connections of the transport's own.
        epoch: this process's.
        fingerprint: of what this process serves.
        encryption: for connections of the transport's own, None where TLS is off.
        executor: threads for moving bytes.
        changed: to be called when `capability` has changed by itself.
    """

    config: EcConfig
    secret: Secret
    epoch: str
    fingerprint: str
    encryption: Encryption | None
    executor: Executor
    changed: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The producer that a link reads from."""

    host: str
    port: int
    epoch: str
    fingerprint: str


class Channel(ABC):
    """The way of one read. Always closed, whatever happened."""

    route: bytes = b""
    """Where the producer shall send to; travels in the read request."""

    @abstractmethod
    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        """Have the granted bytes in writable buffers of the same total size.

        When it returns or raises, also by cancellation, nothing writes to the buffers any more,
        unless the transport does not stop at once.

        Raises:
            TransferError: `transport_failed`.
        """

    async def view(self, granted: Granted, deadline: Deadline) -> memoryview | None:
        """The granted bytes where they are, read-only; None where they must be received.

        Raises:
            TransferError: `transport_failed`.
        """
        return None

    async def settled(self) -> None:
        """Wait until nothing writes to the destination of a `receive` that raised.

        The channel may have been closed meanwhile.
        """
        return

    @abstractmethod
    async def close(self, *, clean: bool) -> None:
        """Give the channel back; not `clean` after a read that did not end as it should."""


class Link(ABC):
    """A way to one peer."""

    def update(self, capability: bytes) -> None:  # noqa: B027 (most links need not know)
        """The peer has said anew what it has."""

    @abstractmethod
    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        """A channel for one read of about `nbytes`.

        Raises:
            TransferError: `transport_failed`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Drop everything that belongs to the peer."""


class Transport(ABC):
    """One way of moving bytes, as offered by this process to its peers and used towards them."""

    name: ClassVar[str]
    """As in configuration, descriptors and metrics."""

    rank: int
    """Lower is tried first; may depend on the machine, so it counts after `start`."""

    stops_at_once: ClassVar[bool] = True
    """Whether `receive` can be broken off. Otherwise the destination is memory of the store's
    region, kept until `Channel.settled`, and copied from there."""

    maps_memory: ClassVar[bool] = False
    """Whether it needs memory that other processes can map."""

    names_spans: ClassVar[bool] = True
    """Whether the consumer needs to know where the bytes are."""

    pushes: ClassVar[bool] = False
    """Whether the producer sends (`push`); otherwise the consumer reads by itself."""

    inlines: ClassVar[int] = 0
    """Items of up to so many bytes travel in the exchange's answer instead."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def unwanted(cls) -> str | None:
        """Why this transport is not used here unless it is asked for by name, or None."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Get ready to serve and to link.

        Raises:
            TransferError: `transport_failed`: it cannot work on this machine, and why.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Close everything; afterwards no memory of a region is touched."""

    def add_region(self, region: Region) -> bool:
        """Take a region in; False where this transport cannot read from such memory."""
        return True

    async def ready(self) -> None:
        """Wait until the regions that were added can be read."""
        return

    @abstractmethod
    def capability(self) -> bytes:
        """What a peer's link needs to know; told when it connects and when a region is added."""

    async def push(self, route: bytes, spans: Sequence[memoryview], lease: bytes) -> None:
        """Send the bytes of a granted read where its route says.

        When it returns or raises nothing reads the spans any more.

        Raises:
            TransferError: `transport_failed`.
        """
        raise TransferError(f"{self.name} does not push", "transport_failed")

    def opened(self, lease: bytes) -> None:  # noqa: B027 (most transports need not know)
        """A peer has been granted a lease to read by this transport."""

    def ended(self, lease: bytes) -> None:  # noqa: B027
        """That lease has ended."""

    def lapse(self, lease: bytes) -> None:  # noqa: B027 (a transport that pulls has nothing to stop)
        """A lease ended while a push may be under way: stop it."""

    @abstractmethod
    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        """Get in touch with a peer that has this transport.

        Raises:
            TransferError: `transport_failed`: it does not reach that peer, and why.
        """
