"""KV blocks from a prefill replica to a decode replica.

Prefill offers the blocks of a request as spans of its cache; decode reads them straight into
blocks of its own. Where the cache is in device memory both go through a region of host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ec_connector.connector import EcConnector
from ec_connector.regions import Region
from ec_connector.torch_adapter import from_buffer
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TransferError
from protocol.generate import GenerateRequest
from protocol.transfer import EcItem, KvHandoff, parse_kv_handoff
from workers.engine import Engine
from workers.kv_buffer import KvBuffer
from workers.kv_cache import BlockPool, OutOfBlocks

_DTYPE = "uint8"

FETCH_S = 15.0
"""Longest fetch of a request's blocks, which are there already: a replica that takes longer hangs,
and prefilling again elsewhere is sooner done."""


class KvTransfer(Protocol):
    """Moving whole KV blocks between replicas."""

    async def offer(self, work_id: int, blocks: Sequence[int], lease_s: float) -> EcItem:
        """Let one replica read a finished prefill's blocks, which are freed afterwards.

        Raises:
            TransferError: `store_full`, nothing was offered.
        """
        ...

    async def fetch(self, source: EcItem, blocks: Sequence[int], deadline: Deadline) -> None:
        """Read blocks into blocks of ours.

        Raises:
            TransferError: by kind; the blocks hold anything then.
        """
        ...


class HostKvTransfer:
    """Straight from and into a cache in host memory.

    Args:
        connector: offers and fetches.
        engine: holds the blocks of finished prefills.
        kv: the cache.
        region: the cache's memory, registered.
        fingerprint: digest of this worker's, which the other side must share.
    """

    def __init__(
        self,
        connector: EcConnector,
        engine: Engine,
        kv: KvBuffer,
        region: Region,
        fingerprint: str,
    ) -> None:
        self._connector = connector
        self._engine = engine
        self._kv = kv
        self._region = region
        self._fingerprint = fingerprint

    async def offer(self, work_id: int, blocks: Sequence[int], lease_s: float) -> EcItem:
        return self._connector.offer(
            f"kv-{work_id}",
            self._region,
            self._kv.spans(blocks),
            shape=(len(blocks), self._kv.block_nbytes),
            dtype=_DTYPE,
            lease_s=lease_s,
            on_release=lambda: self._engine.release(work_id),
        )

    async def fetch(self, source: EcItem, blocks: Sequence[int], deadline: Deadline) -> None:
        buffer = self._region.buffer
        into = [buffer[offset : offset + size] for offset, size in self._kv.spans(blocks)]
        await self._connector.fetch_into(
            source, into, deadline.within(FETCH_S), fingerprint=self._fingerprint
        )


class StagedKvTransfer:
    """Through host memory, from and into a cache in device memory.

    A prefill's blocks are free on the device as soon as they are copied out.

    Args:
        connector: offers and fetches; gives the memory.
        engine: copies between host and device, in its thread.
        kv: the cache.
        nbytes: of the host memory.
        fingerprint: digest of this worker's, which the other side must share.
    """

    def __init__(
        self, connector: EcConnector, engine: Engine, kv: KvBuffer, nbytes: int, fingerprint: str
    ) -> None:
        self._connector = connector
        self._engine = engine
        self._kv = kv
        self._fingerprint = fingerprint
        count = max(1, nbytes // kv.block_nbytes)
        memory = connector.allocate(count * kv.block_nbytes)
        self._slots = BlockPool(count)
        self._region = connector.register("kv-staging", memory)
        self._host = kv.over(from_buffer(memory, (memory.nbytes,), "uint8"))

    async def offer(self, work_id: int, blocks: Sequence[int], lease_s: float) -> EcItem:
        slots = self._take(len(blocks))
        try:
            await self._engine.call(lambda: self._host.restore(slots, self._kv.save(blocks)))
            source = self._connector.offer(
                f"kv-{work_id}",
                self._region,
                self._host.spans(slots),
                shape=(len(blocks), self._kv.block_nbytes),
                dtype=_DTYPE,
                lease_s=lease_s,
                on_release=lambda: self._slots.release(slots),
            )
        except BaseException:
            self._slots.release(slots)
            raise
        self._engine.release(work_id)
        return source

    async def fetch(self, source: EcItem, blocks: Sequence[int], deadline: Deadline) -> None:
        slots = self._take(len(blocks))
        try:
            buffer = self._region.buffer
            into = [buffer[offset : offset + size] for offset, size in self._host.spans(slots)]
            await self._connector.fetch_into(
                source, into, deadline.within(FETCH_S), fingerprint=self._fingerprint
            )
            await self._engine.call(lambda: self._kv.restore(blocks, self._host.save(slots)))
        finally:
            self._slots.release(slots)

    def _take(self, count: int) -> list[int]:
        try:
            return self._slots.allocate(count)
        except OutOfBlocks:
            raise TransferError(
                "the staging memory for KV blocks is full: raise kv_staging_bytes", "store_full"
            ) from None


def handoff_of(request: GenerateRequest, kv: KvBuffer) -> KvHandoff | None:
    """The KV blocks that a request brings, None where it brings none.

    Raises:
        InvalidRequest: they are malformed, or not those of this request.
        TransferError: `incompatible`, of another layout.
    """
    params = request.kv_params
    if not params:
        return None
    try:
        handoff = parse_kv_handoff(params)
    except ValueError as error:
        raise InvalidRequest(str(error), "kv_transfer_params") from None
    if handoff is None:
        raise InvalidRequest(
            "kv_transfer_params are of another engine: this worker reads triptych_kv",
            "kv_transfer_params",
        )
    total = len(request.token_ids) + len(request.resume_token_ids or ())
    if handoff.num_tokens != total or len(handoff.first_tokens) != request.sampling_params.n:
        raise InvalidRequest(
            "kv_transfer_params are of another request: token counts or choices differ",
            "kv_transfer_params",
        )
    blocks = -(-total // kv.block_size)
    shape = (blocks, kv.block_nbytes)
    if handoff.block_size != kv.block_size or handoff.source.shape != shape:
        raise TransferError(
            f"KV blocks of {handoff.block_size} tokens, {list(handoff.source.shape)}, do not fit "
            f"this worker's of {kv.block_size} tokens, {list(shape)}",
            "incompatible",
            (handoff.source.mm_hash,),
            "kv_transfer_params",
        )
    return handoff
