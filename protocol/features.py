"""`features` of a generate request: hashes, placeholders and processor data of the media.

Arrays of one modality are parallel: entry i is item i (wire-protocol §2.3). Two keys are ours
and ignored by vLLM: `is_embed` in a placeholder, `kwargs_handles` beside `kwargs_data`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from protocol.transfer import EcItem


class PlaceholderRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens that stand for one item.

    Attributes:
        offset: index of the first of them in `token_ids`.
        length: how many.
        is_embed: ours: `[start, length]` runs, relative to `offset`, of the tokens that take an
            embedding row; None where all do. It is needed where other tokens are interleaved.
    """

    offset: int
    length: int
    is_embed: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ValueError("offset must not be negative")
        if self.length <= 0:
            raise ValueError("length must be positive")
        end = 0
        for start, length in self.is_embed or ():
            if start < end or length <= 0 or start + length > self.length:
                raise ValueError("is_embed must be sorted runs inside the placeholder")
            end = start + length

    @property
    def rows(self) -> int:
        """Embedding rows that the item fills."""
        if self.is_embed is None:
            return self.length
        return sum(length for _, length in self.is_embed)


class ItemRef(msgspec.Struct, frozen=True):
    """One item of a request with everything that the request says about it."""

    modality: str
    index: int
    mm_hash: str
    placeholder: PlaceholderRange
    kwargs: str | None
    metadata: str | None
    handle: EcItem | None


class MultiModalFeatures(msgspec.Struct, frozen=True):
    """What render found out about the media of a prompt whose placeholders are expanded.

    Attributes:
        mm_hashes: modality -> content hash per item.
        mm_placeholders: modality -> range per item; globally disjoint.
        kwargs_data: modality -> base64 item (encoder inputs and metadata), or null, per item.
        mm_metadata: modality -> base64 item (metadata only), or null, per item.
        kwargs_handles: ours: modality -> descriptor of the same bytes in render's store, in place
            of `kwargs_data`; never in JSON that leaves the cluster.
    """

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None
    kwargs_handles: dict[str, list[EcItem | None]] | None = None

    def __post_init__(self) -> None:
        if self.mm_placeholders.keys() != self.mm_hashes.keys():
            raise ValueError("mm_hashes and mm_placeholders must use the same modalities")
        for name, column in self._optional():
            if column is not None and column.keys() != self.mm_hashes.keys():
                raise ValueError(f"{name} must use the same modalities as mm_hashes")
        for modality, hashes in self.mm_hashes.items():
            if len(self.mm_placeholders[modality]) != len(hashes):
                raise ValueError(
                    f"{modality} mm_hashes and mm_placeholders must have the same length"
                )
            for name, column in self._optional():
                if column is not None and len(column[modality]) != len(hashes):
                    raise ValueError(f"{modality} {name} and mm_hashes must have the same length")
        ranges = sorted(
            (r.offset, r.length) for ranges in self.mm_placeholders.values() for r in ranges
        )
        end = 0
        for offset, length in ranges:
            if offset < end:
                raise ValueError("mm_placeholders must be globally non-overlapping and sorted")
            end = offset + length

    def _optional(self) -> Iterator[tuple[str, Mapping[str, Sequence[Any]] | None]]:
        yield "kwargs_data", self.kwargs_data
        yield "mm_metadata", self.mm_metadata
        yield "kwargs_handles", self.kwargs_handles

    @property
    def end(self) -> int:
        """The first token index after every placeholder."""
        return max(
            (r.offset + r.length for ranges in self.mm_placeholders.values() for r in ranges),
            default=0,
        )

    def items(self) -> list[ItemRef]:
        """All items in prompt order."""
        refs = [
            ItemRef(
                modality,
                index,
                mm_hash,
                self.mm_placeholders[modality][index],
                self.kwargs_data[modality][index] if self.kwargs_data else None,
                self.mm_metadata[modality][index] if self.mm_metadata else None,
                self.kwargs_handles[modality][index] if self.kwargs_handles else None,
            )
            for modality, hashes in self.mm_hashes.items()
            for index, mm_hash in enumerate(hashes)
        ]
        return sorted(refs, key=lambda ref: ref.placeholder.offset)

    def without_kwargs(self) -> MultiModalFeatures:
        """The same without encoder inputs: what prefill is sent (metadata only)."""
        metadata = self.mm_metadata
        if metadata is not None:
            metadata = {
                modality: metadata.get(modality) or [None] * len(hashes)
                for modality, hashes in self.mm_hashes.items()
            }
        return MultiModalFeatures(self.mm_hashes, self.mm_placeholders, None, metadata)
