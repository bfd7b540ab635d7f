"""Items to `features`: inline for clients, by handle for our own coordinator."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pybase64

from ec_connector.connector import EcConnector
from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.transfer import EcItem
from render.embeds import EmbedItem
from render.media import MediaItem


class TensorSink(ABC):
    """Where the tensors of a request's items go.

    Attributes:
        takes_text: items are to be loaded as base64.
    """

    takes_text: ClassVar[bool] = False

    @abstractmethod
    async def add(
        self,
        items: Sequence[MediaItem | EmbedItem],
        features: MultiModalFeatures,
        *,
        salt: str,
        deadline: Deadline,
    ) -> MultiModalFeatures:
        """The features with the tensors of `items`, which are in the features' order."""


class Inline(TensorSink):
    """Base64 in `kwargs_data`."""

    takes_text = True

    async def add(
        self,
        items: Sequence[MediaItem | EmbedItem],
        features: MultiModalFeatures,
        *,
        salt: str,
        deadline: Deadline,
    ) -> MultiModalFeatures:
        texts: dict[str, str] = {}
        column: dict[str, list[str | None]] = {m: [] for m in features.mm_hashes}
        for item in items:
            if item.head.mm_hash not in texts:
                texts[item.head.mm_hash] = self._text(await item.body(deadline))
            column[item.modality].append(texts[item.head.mm_hash])
        return MultiModalFeatures(
            features.mm_hashes, features.mm_placeholders, column, features.mm_metadata
        )

    def _text(self, body: bytes) -> str:
        return body.decode("ascii")


class Spliced(Inline):
    """Marks in `kwargs_data`, which base64 takes the place of when the JSON leaves.

    Tensors are megabytes: they are neither searched for characters to escape nor copied.
    """

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._mark = secrets.token_hex(16)  # what no client can have written

    def split(self, document: bytes) -> list[bytes]:
        """A JSON document with these features, as parts in order; bodies are not copied."""
        if not self._bodies:
            return [document]
        rest, *marked = document.split(self._mark.encode())
        parts = [rest]
        for part in marked:
            number, _, rest = part.partition(b":")
            parts += [self._bodies[int(number)], rest]
        return parts

    def _text(self, body: bytes) -> str:
        self._bodies.append(body)
        return f"{self._mark}{len(self._bodies) - 1}:"


class Published(TensorSink):
    """Descriptors of entries in render's own store, in `kwargs_handles`.

    Attributes:
        keys: of the entries that were leased, for whoever ends the leases.
    """

    def __init__(self, ec: EcConnector, lease_s: float) -> None:
        self._ec = ec
        self._lease_s = lease_s
        self.keys: list[str] = []

    async def add(
        self,
        items: Sequence[MediaItem | EmbedItem],
        features: MultiModalFeatures,
        *,
        salt: str,
        deadline: Deadline,
    ) -> MultiModalFeatures:
        handles: dict[str, EcItem] = {}
        column: dict[str, list[EcItem | None]] = {m: [] for m in features.mm_hashes}
        for item in items:
            name = item.head.mm_hash
            if name not in handles:
                handles[name] = await self._publish(item, salt, deadline)
                self.keys.append(handles[name].key)
            column[item.modality].append(handles[name])
        return MultiModalFeatures(
            features.mm_hashes, features.mm_placeholders, None, features.mm_metadata, column
        )

    async def _publish(self, item: MediaItem | EmbedItem, salt: str, deadline: Deadline) -> EcItem:
        if isinstance(item, EmbedItem):  # under a name of the client's choice, for nobody here
            raise InvalidRequest("this pipeline makes its embeddings itself", item.param)
        name = item.head.mm_hash
        held = self._ec.held(name, salt, self._lease_s)
        if held is not None:
            return held
        body = await item.body(deadline)
        return await self._ec.publish(
            name, body, shape=(len(body),), dtype="uint8", salt=salt, lease_s=self._lease_s
        )


def without_tensors(
    items: Sequence[MediaItem | EmbedItem],
    ranges: dict[str, list[PlaceholderRange]],
    *,
    metadata: bool,
) -> MultiModalFeatures:
    """Hashes, placeholders and, if asked for, the metadata of items."""
    hashes: dict[str, list[str]] = {modality: [] for modality in ranges}
    column: dict[str, list[str | None]] = {modality: [] for modality in ranges}
    for item in items:
        hashes[item.modality].append(item.head.mm_hash)
        raw = item.head.metadata
        column[item.modality].append(
            None if raw is None else pybase64.b64encode(raw).decode("ascii")
        )
    some = any(text is not None for texts in column.values() for text in texts)
    return MultiModalFeatures(hashes, ranges, None, column if some and metadata else None)
