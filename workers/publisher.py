"""The encode role: pixels in, embeddings published, a descriptor out.

An item that is held already is not encoded again, and one that is being encoded is encoded once:
those who ask for it meanwhile, here or through the EC connector, wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import torch

from ec_connector.connector import EcConnector
from ec_connector.torch_adapter import as_buffer
from protocol import items as codec
from protocol.deadline import Deadline
from protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    TransferError,
    TriptychError,
    Unavailable,
)
from protocol.rpc import (
    EncodeCall,
    Encoded,
    EncodeItem,
    HeldItem,
    Reservation,
    ReserveCall,
    Reserved,
    ReserveItem,
)
from protocol.transfer import EcItem
from telemetry.workers import WorkerMetrics
from workers.adapters.base import Adapter, EncoderInput
from workers.embedding_cache import ItemKey
from workers.encoder import EncoderQueue
from workers.holdings import HoldingsBoard
from workers.media import decode_item, fetch_pixels
from workers.promises import Promises
from workers.single_flight import SingleFlight

T = TypeVar("T")

RESERVED_S = 10.0
"""How long a reserved item is waited for before those who wait are told that it will not come."""


class Publisher:
    """Encodes items into the EC store.

    Args:
        adapter: of the model.
        connector: whose store takes the embeddings.
        encoder: the tower's queue.
        dtype: of embeddings.
        metrics: of this worker.

    Attributes:
        holdings: what the store holds, for coordinators to know.
    """

    def __init__(
        self,
        adapter: Adapter,
        connector: EcConnector,
        encoder: EncoderQueue,
        dtype: torch.dtype,
        metrics: WorkerMetrics,
    ) -> None:
        self._adapter = adapter
        self._connector = connector
        self._encoder = encoder
        self._dtype = str(dtype).removeprefix("torch.")
        self._metrics = metrics
        self._flights: SingleFlight[ItemKey, EcItem] = SingleFlight()
        self._promises = Promises()
        self.holdings = HoldingsBoard()
        connector.on_evicted(self.holdings.evicted)
        self.draining = False

    @property
    def open(self) -> int:
        """Items that are being encoded or waited for."""
        return len(self._flights)

    def reserve(self, call: ReserveCall) -> Reserved:
        """Say of each item whether it is here, comes here, or is encoded elsewhere.

        Raises:
            Unavailable: this worker drains.
            TransferError: an item's form is invalid.
        """
        self._refuse_if_draining()
        return Reserved([self._reserve(item, call) for item in call.items])

    def _reserve(self, item: ReserveItem, call: ReserveCall) -> Reservation:
        salt = call.cache_salt
        key = (salt, item.mm_hash)
        held = self._connector.held(item.mm_hash, salt, call.lease_s)
        if held is not None:
            return Reservation("held", held)
        if key not in self._flights:
            elsewhere = self._promises.holder(key, call.delegate, call.lease_s, call.avoid)
            if elsewhere:
                return Reservation("elsewhere", None, elsewhere)
        expected = self._connector.expect(
            item.mm_hash,
            shape=(item.rows, self._adapter.shape.embedding_width),
            dtype=self._dtype,
            salt=salt,
            lease_s=RESERVED_S,
        )
        known = key in self._flights or self._promises.kept(key)
        self._promises.make(key, RESERVED_S)
        return Reservation("in_flight" if known else "yours", expected)

    async def encode(self, call: EncodeCall, deadline: Deadline) -> Encoded:
        """Encode what is not held; a descriptor per item, in order.

        Raises:
            TransferError: retryable; names every item that failed for such a reason.
            InvalidRequest: an item is not one of this model, or gives another number of rows.
            Unavailable: this worker drains.
        """
        self._refuse_if_draining()
        results = await asyncio.gather(
            *(self._item(item, call, deadline) for item in call.items), return_exceptions=True
        )
        done = raise_together(results)
        return Encoded([item for item, _ in done], [reused for _, reused in done])

    def _refuse_if_draining(self) -> None:
        if self.draining:
            raise Unavailable("this worker is draining")

    async def _item(
        self, item: EncodeItem, call: EncodeCall, deadline: Deadline
    ) -> tuple[EcItem, bool]:
        key = (call.cache_salt, item.mm_hash)
        held = self._connector.held(item.mm_hash, call.cache_salt, call.lease_s)
        if held is not None:
            self._metrics.items.labels("cache").inc()
            return self._of_rows(held, item), True
        begun = False

        def begin() -> Coroutine[Any, Any, EcItem]:
            nonlocal begun
            begun = True
            self._metrics.items.labels("inline" if item.handle is None else "handle").inc()
            return self._publish(item, call, deadline)

        try:
            async with asyncio.timeout(deadline.remaining("encode")):
                published = await self._flights.run(key, begin)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request's time was over before item {item.mm_hash} was encoded",
                stage="encode",
                items=(item.mm_hash,),
            ) from None
        held = self._connector.held(item.mm_hash, call.cache_salt, call.lease_s)
        return self._of_rows(held or published, item), not begun

    def _of_rows(self, published: EcItem, item: EncodeItem) -> EcItem:
        if published.shape[0] != item.rows:
            raise _wrong_rows(item, published.shape[0])
        return published

    async def _publish(self, item: EncodeItem, call: EncodeCall, deadline: Deadline) -> EcItem:
        salt = call.cache_salt
        shape = (item.rows, self._adapter.shape.embedding_width)
        self._promises.end((salt, item.mm_hash))
        try:
            self._connector.expect(item.mm_hash, shape=shape, dtype=self._dtype, salt=salt)
            pixels = await self._pixels(item, deadline)
            if pixels.layout.rows != item.rows:
                raise _wrong_rows(item, pixels.layout.rows)
            rows = await self._encoder.encode(item.mm_hash, pixels)
            if rows.device.type != "cpu":
                rows = await asyncio.to_thread(rows.cpu)
            published = await self._connector.publish(
                item.mm_hash,
                as_buffer(rows),
                shape=shape,
                dtype=self._dtype,
                salt=salt,
                lease_s=call.lease_s,
            )
            self.holdings.published(published.key, HeldItem(item.mm_hash, salt))
            return published
        except BaseException as error:
            reason = error.message if isinstance(error, TriptychError) else "it was given up"
            self._connector.fail(
                item.mm_hash,
                TransferError(f"encoding failed: {reason}", "missing", (item.mm_hash,)),
                salt,
            )
            raise

    async def _pixels(self, item: EncodeItem, deadline: Deadline) -> EncoderInput:
        where = f"items.{item.mm_hash}"
        if item.data is not None or item.text is not None:
            fields = (
                codec.decode(item.data)
                if item.data is not None
                else await decode_item(item.text or "")
            )
            layout = self._adapter.layout(item.modality, fields, where)
            pixels = self._adapter.encoder_input(layout, fields, where)
            source = "inline"
        elif item.handle is not None:
            pixels = await fetch_pixels(
                self._adapter, self._connector, item.handle, None, deadline, where, item.modality
            )
            source = "handle"
        else:
            raise InvalidRequest(f"item {item.mm_hash} has no pixels", where, items=(item.mm_hash,))
        self._metrics.encoder_input_bytes.labels(source).inc(pixels.pixels.nbytes)
        return pixels


def raise_together(results: Sequence[T | BaseException]) -> list[T]:
    """The results, or one error for all that failed.

    Raises:
        TransferError: all failures are; names every item.
        BaseException: else the first failure that is none.
    """
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, TransferError):
            raise error
    transfers = [error for error in errors if isinstance(error, TransferError)]
    if transfers:
        first = transfers[0]
        items = tuple(dict.fromkeys(name for error in transfers for name in error.items))
        raise TransferError(first.message, first.kind, items, first.param, first.stage)  # type: ignore[arg-type]
    return [result for result in results if not isinstance(result, BaseException)]


def _wrong_rows(item: EncodeItem, rows: int) -> InvalidRequest:
    return InvalidRequest(
        f"item {item.mm_hash} gives {rows} embedding rows, its placeholder takes {item.rows}",
        "features.mm_placeholders",
        items=(item.mm_hash,),
    )
