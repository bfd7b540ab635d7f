"""The media of one request: fetched, processed in the pool, each content once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest, TriptychError
from render.cache import ItemCache, ItemHead
from render.config import MediaConfig
from render.embeds import EmbedRef
from render.fetch import MediaFetcher
from render.media_process import MediaJob
from render.messages import MediaRef
from render.pool import MediaPool
from serving.single_flight import SingleFlight
from telemetry.render import RenderMetrics

_json = msgspec.json.Encoder(order="sorted")


class MediaItem:
    """One medium of a request, processed.

    Attributes:
        modality: `image`, `video`, `audio`.
        head: its hash, metadata and tokens.
    """

    def __init__(
        self, loader: MediaLoader, job: MediaJob, key: Hashable, head: ItemHead, param: str
    ) -> None:
        self.modality = job.modality
        self.head = head
        self._loader = loader
        self._job = job
        self._key = key
        self._param = param

    async def body(self, deadline: Deadline) -> bytes:
        """The encoded item, base64 where it was loaded so; made again if the cache dropped it."""
        _, body = await self._loader.process(self._job, self._key, self._param, deadline)
        return body


class MediaLoader:
    """Loads the media of requests.

    Args:
        model_id: the model as it was named to the server: part of every hash.
    """

    def __init__(
        self, config: MediaConfig, pool: MediaPool, model_id: str, metrics: RenderMetrics
    ) -> None:
        self._config = config
        self._pool = pool
        self._model_id = model_id
        self._metrics = metrics
        self._fetcher = MediaFetcher(config)
        self._cache = ItemCache(config.cache_bytes)
        self._flights: SingleFlight[Hashable, tuple[ItemHead, bytes]] = SingleFlight()

    async def load(
        self,
        refs: Sequence[MediaRef],
        kwargs: dict[str, Any] | None,
        io: dict[str, Any] | None,
        deadline: Deadline,
        *,
        as_text: bool,
    ) -> list[MediaItem]:
        """The items of a request, in its order; equal URLs are loaded once.

        Args:
            refs: the media.
            kwargs: `mm_processor_kwargs`.
            io: `media_io_kwargs`, by modality.
            deadline: of the request.
            as_text: the items' bodies are to be base64.

        Raises:
            TriptychError: of the first item that failed, naming its field.
        """
        distinct: dict[tuple[str, str], MediaRef] = {}
        for ref in refs:
            distinct.setdefault((ref.modality, ref.url), ref)
        tasks = {
            key: asyncio.create_task(
                self._load(ref, kwargs, (io or {}).get(ref.modality), deadline, as_text=as_text)
            )
            for key, ref in distinct.items()
        }
        try:
            if tasks:
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks.values():
                if task.done():
                    task.result()
            return [tasks[ref.modality, ref.url].result() for ref in refs]
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def process(
        self, job: MediaJob, key: Hashable, param: str, deadline: Deadline
    ) -> tuple[ItemHead, bytes]:
        """The item of a job, from the cache or the pool; raises as `load` does."""
        head, body = self._cache.head(key), self._cache.body(key)
        if head is not None and body is not None:
            self._metrics.cache_hits.inc()
            return head, body

        async def make() -> tuple[ItemHead, bytes]:
            with self._metrics.media_seconds.time():
                result = await self._pool.run(job, deadline)
            head = ItemHead(result.mm_hash, result.metadata, result.runs)
            self._cache.put(key, head, result.item)
            self._metrics.cache_bytes.set(self._cache.used)
            return head, result.item

        try:
            return await self._flights.run(key, make)
        except TriptychError as error:
            raise type(error)(
                error.message, error.param or param, "render", (), error.retry_after
            ) from None

    async def close(self) -> None:
        """Close connections."""
        await self._fetcher.close()

    async def _load(
        self,
        ref: MediaRef,
        kwargs: dict[str, Any] | None,
        io: dict[str, Any] | None,
        deadline: Deadline,
        *,
        as_text: bool,
    ) -> MediaItem:
        data = await self._fetcher.fetch(ref.url, ref.param, deadline)
        self._metrics.media_bytes.inc(len(data))
        job = MediaJob(
            ref.modality,
            data,
            kwargs,
            self._model_id,
            self._config.max_image_pixels,
            self._config.max_frames,
            self._config.max_audio_seconds,
            io,
            as_text,
        )
        key = (ref.modality, blake3(data).digest(), _json.encode([kwargs, io]), as_text)
        head = self._cache.head(key)
        if head is None:
            head, _ = await self.process(job, key, ref.param, deadline)
        return MediaItem(self, job, key, head, ref.param)

    def check_counts(self, refs: Sequence[MediaRef | EmbedRef]) -> None:
        """Refuse more items of a modality than are allowed.

        Raises:
            InvalidRequest: names the modality.
        """
        for modality, count in Counter(ref.modality for ref in refs).items():
            limit = self._config.limit(modality)
            if count > limit:
                raise InvalidRequest(
                    f"At most {limit} {modality}(s) may be provided in one prompt.", modality
                )
