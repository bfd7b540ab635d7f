"""Getting the embedding of each item of a prompt: from the EC connector, or by encoding it here.

`prepare` reads what the request says about its items and refuses what cannot work; `load` brings
one embedding. Embeddings seen lately are kept, and an item that several requests wait for is
fetched or encoded once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from ec_connector.connector import EcConnector
from ec_connector.torch_adapter import as_buffer
from protocol import items as codec
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, InvalidRequest, TransferError
from protocol.features import ItemRef
from protocol.generate import GenerateRequest
from protocol.transfer import EcItem, EcParams, parse_ec_params
from telemetry.workers import WorkerMetrics
from workers.adapters.base import Adapter, EncoderInput, ItemLayout
from workers.embedding_cache import EmbeddingCache, ItemKey
from workers.encoder import EncoderQueue
from workers.single_flight import SingleFlight

_MAX_LAYOUTS = 4096
_LARGE = 256 * 1024
"""Characters of base64, and bytes of an embedding, that are gone through off the event loop."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One item of a prompt, checked.

    Attributes:
        ref: what the request says about it.
        layout: its grid and rows.
        ec: where its embedding is, None where it must be encoded here.
        fields: its content, where its pixels came inline.
        pixels: the same for the tower, where it is certain that it must be encoded here.
    """

    ref: ItemRef
    layout: ItemLayout
    ec: EcItem | None
    fields: dict[str, codec.Field] | None
    pixels: EncoderInput | None = None


class MediaLoader:
    """Brings embeddings to a worker with a language model.

    Args:
        adapter: of the model.
        connector: fetches embeddings and pixels.
        encoder: None where this worker has no vision tower.
        fingerprint: digest of this worker's, which embeddings must share.
        dtype: of embeddings.
        cache_bytes: of embeddings that are kept.
        max_wait_s: longest time for one item.
        metrics: of this worker.
    """

    def __init__(
        self,
        adapter: Adapter,
        connector: EcConnector,
        encoder: EncoderQueue | None,
        fingerprint: str,
        dtype: torch.dtype,
        cache_bytes: int,
        max_wait_s: float,
        metrics: WorkerMetrics,
    ) -> None:
        self._adapter = adapter
        self._connector = connector
        self._encoder = encoder
        self._fingerprint = fingerprint
        self._dtype = dtype
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        self._cache = EmbeddingCache(cache_bytes)
        self._layouts: OrderedDict[ItemKey, ItemLayout] = OrderedDict()
        self._flights: SingleFlight[tuple[str, ...], torch.Tensor] = SingleFlight()

    async def prepare(self, request: GenerateRequest, deadline: Deadline) -> list[MediaItem]:
        """The request's items, checked, in prompt order.

        Raises:
            InvalidRequest: names the field at fault.
            TransferError: pixels whose grid nobody told could not be fetched.
        """
        if request.features is None:
            return []
        try:
            ec = parse_ec_params(request.ec_params or {})
        except ValueError as error:
            raise InvalidRequest(str(error), "ec_transfer_params") from None
        salt = request.cache_salt or ""
        return [await self._prepare(ref, ec, salt, deadline) for ref in request.features.items()]

    async def load(self, item: MediaItem, salt: str, deadline: Deadline) -> torch.Tensor:
        """An item's embedding, [rows, embedding_width]; nobody may write to it.

        Raises:
            TransferError: it could not be moved; names the item.
            InvalidRequest: the pixels do not fit the item's metadata.
            DeadlineExceeded: the request's time is over.
        """
        key = (salt, item.ref.mm_hash)
        rows = self._cache.get(key)
        if rows is not None and len(rows) == item.layout.rows:
            self._metrics.items.labels("cache").inc()
            return rows
        try:
            async with asyncio.timeout(deadline.remaining("transfer")):
                rows = await self._load(item, key)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request's time was over before item {item.ref.mm_hash} was there",
                stage="transfer",
                items=(item.ref.mm_hash,),
            ) from None
        self._cache.put(key, rows)
        return rows

    # --- what the request says ---------------------------------------------------------------

    async def _prepare(
        self, ref: ItemRef, ec: EcParams, salt: str, deadline: Deadline
    ) -> MediaItem:
        where = f"features.{ref.modality}.{ref.index}"
        known = ec.items.get(ref.mm_hash)
        has_pixels = ref.kwargs is not None or ref.handle is not None
        if known is None and not has_pixels:
            raise InvalidRequest(
                f"item {ref.mm_hash} has no kwargs_data, and ec_transfer_params has no entry of "
                "ours for it",
                where,
                items=(ref.mm_hash,),
            )
        if known is None and self._encoder is None:
            raise InvalidRequest(
                f"item {ref.mm_hash} comes as kwargs_data, but this worker has no vision tower: "
                "send its embedding with ec_transfer_params",
                where,
                items=(ref.mm_hash,),
            )
        pixels = None if ref.kwargs is None else await decode_item(ref.kwargs)
        fields = dict(pixels or {})
        if ref.metadata is not None:
            fields |= codec.decode_base64(ref.metadata)
        layout = await self._layout(ref, fields, salt, deadline, where)
        if layout.rows != ref.placeholder.rows:
            raise InvalidRequest(
                f"item {ref.mm_hash} gives {layout.rows} embedding rows, its placeholder takes "
                f"{ref.placeholder.rows}",
                f"features.mm_placeholders.{ref.modality}.{ref.index}",
                items=(ref.mm_hash,),
            )
        if pixels is None:
            return MediaItem(ref, layout, known, None)
        if known is None:
            item = self._adapter.encoder_input(layout, fields, where)
            return MediaItem(ref, layout, None, fields, item)
        return MediaItem(ref, layout, known, fields)

    async def _layout(
        self,
        ref: ItemRef,
        fields: dict[str, codec.Field],
        salt: str,
        deadline: Deadline,
        where: str,
    ) -> ItemLayout:
        """The item's grid; of an item without metadata what an earlier request said of it."""
        key = (salt, ref.mm_hash)
        if fields:
            layout = self._adapter.layout(ref.modality, fields, where)
        elif key in self._layouts:
            layout = self._layouts[key]
        elif ref.handle is not None:
            async with self._connector.fetch(ref.handle, deadline) as fetched:
                layout = self._adapter.layout(ref.modality, codec.decode(fetched.data), where)
        else:
            layout = self._adapter.layout(ref.modality, {}, where)
        self._layouts[key] = layout
        self._layouts.move_to_end(key)
        if len(self._layouts) > _MAX_LAYOUTS:
            self._layouts.popitem(last=False)
        return layout

    # --- bringing it -------------------------------------------------------------------------

    async def _load(self, item: MediaItem, key: ItemKey) -> torch.Tensor:
        if item.ec is not None:
            source = item.ec
            flight = ("ec", *key, source.peer_host, str(source.peer_port), source.key, source.epoch)
            try:
                return await self._once(flight, "ec", lambda: self._fetch(item, source))
            except TransferError:
                if self._encoder is None or (item.fields is None and item.ref.handle is None):
                    raise
        origin = "handle" if item.fields is None else "inline"
        return await self._once(("encode", *key), origin, lambda: self._encode(item))

    async def _once(
        self, flight: tuple[str, ...], origin: str, make: Callable[[], Awaitable[torch.Tensor]]
    ) -> torch.Tensor:
        self._metrics.items.labels(origin).inc()
        return await self._flights.run(flight, make)

    async def _fetch(self, item: MediaItem, source: EcItem) -> torch.Tensor:
        shape = (item.layout.rows, self._adapter.shape.embedding_width)
        dtype = str(self._dtype).removeprefix("torch.")
        if source.shape and (source.shape != shape or source.dtype != dtype):
            raise TransferError(
                f"item {source.mm_hash} is {source.dtype} {list(source.shape)}, this model needs "
                f"{dtype} {list(shape)}",
                "incompatible",
                (source.mm_hash,),
            )
        rows = torch.empty(shape, dtype=self._dtype)
        deadline = Deadline.after(self._max_wait_s)
        await self._connector.fetch_into(
            source, [as_buffer(rows)], deadline, fingerprint=self._fingerprint
        )
        # Our encoders refuse such values themselves; one that does not must not spoil an answer.
        finite = torch.isfinite(rows).all
        if not bool(await asyncio.to_thread(finite) if rows.nbytes > _LARGE else finite()):
            message = f"the embedding of item {source.mm_hash} has values that are not finite"
            raise TransferError(message, "invalid_content", (source.mm_hash,))
        return rows

    async def _encode(self, item: MediaItem) -> torch.Tensor:
        if self._encoder is None:
            raise InvalidRequest("this worker has no vision tower", "features")
        where = f"features.{item.ref.modality}.{item.ref.index}"
        if item.fields is not None:
            pixels = item.pixels or self._adapter.encoder_input(item.layout, item.fields, where)
            self._metrics.encoder_input_bytes.labels("inline").inc(pixels.pixels.nbytes)
        elif item.ref.handle is not None:
            pixels = await fetch_pixels(
                self._adapter,
                self._connector,
                item.ref.handle,
                item.layout,
                Deadline.after(self._max_wait_s),
                where,
            )
            self._metrics.encoder_input_bytes.labels("handle").inc(pixels.pixels.nbytes)
        else:
            raise TransferError(
                f"item {item.ref.mm_hash} is not there", "missing", (item.ref.mm_hash,)
            )
        return await self._encoder.encode(item.ref.mm_hash, pixels)


async def decode_item(text: str) -> dict[str, codec.Field]:
    """An item from base64; a large one is decoded in a thread. Raises as the codec does."""
    if len(text) < _LARGE:
        return codec.decode_base64(text)
    return await asyncio.to_thread(codec.decode_base64, text)


async def fetch_pixels(
    adapter: Adapter,
    connector: EcConnector,
    handle: EcItem,
    layout: ItemLayout | None,
    deadline: Deadline,
    where: str,
    modality: str = "image",
) -> EncoderInput:
    """An item's pixels by handle; the layout, if not known, from the item itself.

    Raises:
        TransferError: they could not be fetched.
        InvalidRequest: they are not an item of this model.
    """
    async with connector.fetch(handle, deadline) as fetched:
        fields = codec.decode(fetched.data)
        layout = layout or adapter.layout(modality, fields, where)
        return adapter.encoder_input(layout, fields, where)
