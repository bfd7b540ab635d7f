"""Shared memory: a consumer on the same host maps the producer's memory and reads it in place.

Memory is a sealed memfd (`regions.SharedMemory`). Its descriptor is passed over a Unix socket
after the usual proof of the token; the consumer checks size and seals, so that neither a dying
nor a lying producer can make it fault, and maps it read-only. Nothing has a name in a file system
and nothing is left behind, however a process ends. Only where hosts' processes live in network
namespaces of their own does the socket need a place in a shared directory (`ec.shm_dir`); sockets
of dead processes are swept from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ec_connector.copying import run, scatter
from ec_connector.messages import Granted
from ec_connector.regions import Region, SharedMemory
from ec_connector.transports.base import Channel, Context, Link, PeerInfo, Transport
from ec_connector.transports.connections import Listener, dial, failed, readable
from protocol.deadline import Deadline

_SOCKET_PREFIX = "triptych-ec-"
_ASK = 4
"""Bytes of a request for a memory: its number."""


class _Capability(msgspec.Struct, frozen=True):
    """Where the socket is, and what can be mapped.

    Attributes:
        boot: id of the running kernel: equal means the same host.
        namespace: network namespace of an abstract socket, "" for a path.
        sizes: bytes of each memory.
        regions: region id -> (memory, offset of the region in it).
    """

    boot: str
    namespace: str
    socket: bytes
    sizes: list[int]
    regions: dict[int, tuple[int, int]]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _network_namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def sweep(directory: Path) -> int:
    """Remove the sockets of processes that are gone; returns how many."""
    removed = 0
    for path in directory.glob(f"{_SOCKET_PREFIX}*"):
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock:
            sock.setblocking(False)
            try:
                sock.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                removed += 1
            except OSError:
                continue  # busy, not ours, or gone meanwhile
    return removed


class ShmTransport(Transport):
    """Lets peers on this host map the memory that it was given."""

    name = "shm"
    rank = 10
    maps_memory = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        directory = context.config.shm_dir
        self._directory = Path(directory) if directory else None
        self._memories: list[SharedMemory] = []
        self._regions: dict[int, tuple[int, int]] = {}
        self._listener: Listener | None = None
        self._connections: set[socket.socket] = set()
        self._address = b""

    async def start(self) -> None:
        try:
            listening = self._listen()
        except OSError as error:
            raise failed(self.name, f"no Unix socket: {error}") from None
        self._listener = Listener(self.context, listening, self.name, self._accepted)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
        for sock in list(self._connections):
            self._drop(sock)
        self._clear_up()

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"{_SOCKET_PREFIX}{self.context.epoch}"
        try:
            if self._directory is None:
                self._address = b"\0" + name.encode()
                listening.bind(self._address)
            else:
                sweep(self._directory)
                self._address = os.fsencode(self._directory / name)
                listening.bind(self._address)
                Path(os.fsdecode(self._address)).chmod(0o600)
            listening.listen(64)
        except OSError:
            listening.close()
            raise
        return listening

    def _clear_up(self) -> None:
        if self._directory is not None:
            Path(os.fsdecode(self._address)).unlink(missing_ok=True)
            sweep(self._directory)

    def add_region(self, region: Region) -> bool:
        if region.memory is None:
            return False
        if region.memory not in self._memories:
            self._memories.append(region.memory)
        self._regions[region.id] = (self._memories.index(region.memory), region.memory_offset)
        return True

    def capability(self) -> bytes:
        return msgspec.msgpack.encode(
            _Capability(
                _boot_id(),
                "" if self._directory is not None else _network_namespace(),
                self._address,
                [memory.nbytes for memory in self._memories],
                self._regions,
            )
        )

    async def link(self, peer: PeerInfo, capability: bytes, deadline: Deadline) -> Link:
        offered = msgspec.msgpack.decode(capability, type=_Capability)
        if offered.boot != _boot_id():
            raise failed(self.name, "the peer is on another host")
        if offered.namespace not in {"", _network_namespace()}:
            raise failed(
                self.name, "the peer is in another network namespace, and ec.shm_dir is not set"
            )
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await dial(self.context, sock, offered.socket, self.name, peer, deadline)
        link = ShmLink(self.context, sock)
        link.update(capability)
        try:
            await link.map_all(deadline)
        except BaseException:
            await link.close()
            raise
        return link

    def _accepted(self, sock: socket.socket) -> bytes:
        sock.setblocking(False)
        self._connections.add(sock)
        asyncio.get_running_loop().add_reader(sock, self._asked, sock)
        return b""

    def _asked(self, sock: socket.socket) -> None:
        """A consumer wants the descriptor of a memory, or is gone."""
        try:
            asked = sock.recv(_ASK)
            index = int.from_bytes(asked, "big")
            if len(asked) < _ASK or index >= len(self._memories):
                self._drop(sock)
                return
            socket.send_fds(sock, [asked], [self._memories[index].fd])
        except BlockingIOError:
            return
        except OSError:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._connections.discard(sock)
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()


class ShmLink(Link):
    """The memories of one peer, mapped once."""

    def __init__(self, context: Context, sock: socket.socket) -> None:
        self._context = context
        self._sock = sock
        self._maps: list[mmap.mmap] = []
        self._offered = _Capability("", "", b"", [], {})
        self._lock = asyncio.Lock()

    def update(self, capability: bytes) -> None:
        self._offered = msgspec.msgpack.decode(capability, type=_Capability)

    async def open(self, nbytes: int, deadline: Deadline) -> Channel:
        return ShmChannel(self, self._context)

    async def close(self) -> None:
        self._sock.close()
        maps, self._maps = self._maps, []
        for mapping in maps:
            # A tensor that still looks at it keeps it mapped.
            with contextlib.suppress(BufferError):
                mapping.close()

    async def views(
        self, granted: Granted, deadline: Deadline, *, only_one: bool = False
    ) -> list[memoryview] | None:
        """The granted bytes where they are; None where they are not in one piece but should be."""
        if granted.region not in self._offered.regions:
            raise failed("shm", f"region {granted.region} cannot be mapped")
        index, start = self._offered.regions[granted.region]
        if index >= len(self._maps):
            await self.map_all(deadline)
        whole = memoryview(self._maps[index])
        region = Region(granted.region, "", whole, 0)
        spans = [(start + offset, nbytes) for offset, nbytes in granted.spans]
        if any(offset < start or offset + size > whole.nbytes for offset, size in spans):
            raise failed("shm", "the granted bytes are outside of the region")
        views = region.views(spans)
        return None if only_one and len(views) != 1 else views

    async def map_all(self, deadline: Deadline) -> None:
        """Map what has been offered and is not mapped yet."""
        limit = min(self._context.config.connect_timeout_s, deadline.remaining("transfer"))
        async with self._lock:
            try:
                async with asyncio.timeout(limit):
                    while len(self._maps) < len(self._offered.sizes):
                        await self._map_next()
            except TimeoutError:
                raise failed("shm", "the peer does not answer") from None
            except OSError as error:
                raise failed("shm", str(error)) from None

    async def _map_next(self) -> None:
        index = len(self._maps)
        self._sock.send(index.to_bytes(_ASK, "big"), socket.MSG_NOSIGNAL)
        await readable(self._sock)
        answer, descriptors, _, _ = socket.recv_fds(
            self._sock, _ASK, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
        try:
            if len(answer) < _ASK or len(descriptors) != 1:
                raise failed("shm", "the peer closed the connection")
            size = self._offered.sizes[index]
            self._maps.append(map_sealed(descriptors[0], size))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


class ShmChannel(Channel):
    """Nothing moves: a read is a look at the mapping."""

    def __init__(self, link: ShmLink, context: Context) -> None:
        self._link = link
        self._context = context

    async def view(self, granted: Granted, deadline: Deadline) -> memoryview | None:
        views = await self._link.views(granted, deadline, only_one=True)
        return None if views is None else views[0]

    async def receive(
        self, granted: Granted, into: Sequence[memoryview], deadline: Deadline
    ) -> None:
        views = await self._link.views(granted, deadline) or []
        await run(self._context.executor, granted.nbytes, lambda: scatter(views, into))

    async def close(self, *, clean: bool) -> None:
        pass


def map_sealed(descriptor: int, size: int) -> mmap.mmap:
    """Map a peer's memory, which must not be able to shrink under us.

    Raises:
        TransferError: `transport_failed`.
    """
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    actual = os.fstat(descriptor).st_size
    if actual != size or not seals & fcntl.F_SEAL_SHRINK:
        raise failed("shm", f"the peer's memory is not sealed at {size} bytes")
    return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
