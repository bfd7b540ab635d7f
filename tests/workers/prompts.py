"""Requests for the tiny checkpoint: prompts with pictures, as render would make them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol import items
from protocol.features import MultiModalFeatures, PlaceholderRange
from protocol.generate import GenerateRequest
from protocol.rpc import EncodeItem
from protocol.sampling import SamplingParams

IMAGE_PAD = 300
_PATCH = 3 * 2 * 4 * 4


@dataclass(frozen=True)
class Picture:
    """Raw patches of a picture of `grid` patches."""

    grid: tuple[int, int, int]
    pixels: np.ndarray[tuple[int, int], np.dtype[np.uint8]]

    @property
    def rows(self) -> int:
        return int(np.prod(self.grid)) // 4

    @property
    def mm_hash(self) -> str:
        return hashlib.sha256(self.pixels.tobytes() + bytes(self.grid)).hexdigest()

    @property
    def item(self) -> dict[str, items.Field]:
        pixels = items.Tensor("uint8", self.pixels.shape, memoryview(self.pixels.tobytes()))
        return {
            "pixel_values": items.Field(pixels, items.Flat([[[0, len(self.pixels), None]]])),
            **self.metadata,
        }

    @property
    def metadata(self) -> dict[str, items.Field]:
        grid = np.array(self.grid, dtype="<i8")
        tensor = items.Tensor("int64", (3,), memoryview(grid.tobytes()))
        return {"image_grid_thw": items.Field(tensor, items.Batched(keep_on_cpu=True))}

    def encode_item(self) -> EncodeItem:
        return EncodeItem(self.mm_hash, "image", self.rows, data=items.encode(self.item))


def picture(seed: int, height: int = 4, width: int = 6) -> Picture:
    """A picture of height x width patches."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (height * width, _PATCH), dtype=np.uint8)
    return Picture((1, height, width), pixels)


def request(
    *parts: list[int] | Picture,
    pixels: bool = True,
    metadata: bool = True,
    **params: Any,
) -> GenerateRequest:
    """A request whose prompt is the parts in order, with inline pixels unless told otherwise."""
    tokens: list[int] = []
    pictures: list[Picture] = []
    ranges: list[PlaceholderRange] = []
    for part in parts:
        if isinstance(part, Picture):
            tokens.append(IMAGE_PAD - 2)
            ranges.append(PlaceholderRange(len(tokens), part.rows))
            tokens += [IMAGE_PAD] * part.rows
            tokens.append(IMAGE_PAD - 1)
            pictures.append(part)
        else:
            tokens += part
    features = None
    if pictures:
        features = MultiModalFeatures(
            {"image": [p.mm_hash for p in pictures]},
            {"image": ranges},
            {"image": [items.encode_base64(p.item) for p in pictures]} if pixels else None,
            {"image": [items.encode_base64(p.metadata) for p in pictures]} if metadata else None,
        )
    top = {
        name: params.pop(name) for name in list(params) if name in GenerateRequest.__struct_fields__
    }
    defaults: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}
    return GenerateRequest(
        token_ids=tokens,
        features=features,
        sampling_params=SamplingParams(**(defaults | params)),
        **top,
    )


def text(seed: int, length: int = 12) -> list[int]:
    """Token ids that mean nothing."""
    ids: list[int] = np.random.default_rng(seed).integers(3, 250, length).tolist()
    return ids
