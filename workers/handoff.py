"""KV blocks from a prefill replica to a decode replica.

Prefill offers the blocks of a request as spans of its cache; decode reads them straight into
blocks of its own. Where the cache is not in host memory both go through `KvStaging`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ec_connector.connector import EcConnector
from ec_connector.regions import Region
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TransferError
from protocol.generate import GenerateRequest
from protocol.transfer import EcItem, KvHandoff, parse_kv_handoff
from workers.engine import Engine
from workers.kv_buffer import KvBuffer

_DTYPE = "uint8"


class KvTransfer(Protocol):
    """Moving whole KV blocks between replicas."""

    def offer(self, work_id: int, blocks: Sequence[int], lease_s: float) -> EcItem:
        """Let one replica read a finished prefill's blocks, which are freed afterwards."""
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

    def offer(self, work_id: int, blocks: Sequence[int], lease_s: float) -> EcItem:
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
        await self._connector.fetch_into(source, into, deadline, fingerprint=self._fingerprint)


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
