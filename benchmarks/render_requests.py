"""Chats for the render benchmark, one JSON line each, with pictures that no other line has."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pybase64
from PIL import Image

SIZES: Final = {"200x300": (200, 300), "512x512": (512, 512), "1280x720": (1280, 720)}
"""(width, height) in pixels."""

_QUALITY: Final = 85
_MARK: Final = 16
"""Side of the patch that tells pictures apart, in pixels: a number as black and white squares."""


class Pictures:
    """JPEGs of one size, each with a number drawn in; the rest looks like a photograph's sky."""

    def __init__(self, width: int, height: int) -> None:
        rng = np.random.default_rng(width * height)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        grain = rng.integers(-6, 7, smooth.shape)
        self._pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)

    def jpeg(self, number: int) -> bytes:
        """The picture of a number below 2**32, other pixels for every number."""
        bits = np.array([number >> bit & 1 for bit in range(32)], dtype=np.uint8)
        squares = np.kron(bits.reshape(4, 8), np.full((_MARK, _MARK), 255, dtype=np.uint8))
        pixels = self._pixels.copy()
        pixels[: squares.shape[0], : squares.shape[1]] = squares[..., None]
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
        return file.getvalue()


def texts(count: int) -> Iterator[dict[str, Any]]:
    """Chats of a few turns, about a hundred words each, all different."""
    words = ["red", "blue", "green", "circle", "square", "triangle", "left", "of", "above", "every"]
    for number in range(count):
        rng = np.random.default_rng(number)
        turns = [" ".join(rng.choice(words, 25)) for _ in range(4)]
        yield {
            "messages": [
                {"role": role, "content": text}
                for role, text in zip(("system", "user", "assistant", "user"), turns, strict=True)
            ]
        }


def about(pictures: Pictures, numbers: range, **options: Any) -> Iterator[dict[str, Any]]:
    """One chat per picture."""
    for number in numbers:
        data = pybase64.b64encode(pictures.jpeg(number)).decode("ascii")
        image = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
        text = {"type": "text", "text": "Describe this image."}
        yield {"messages": [{"role": "user", "content": [image, text]}], **options}


def write(path: Path, bodies: Iterator[dict[str, Any]]) -> Path:
    """One body per line."""
    with path.open("wb") as file:
        for body in bodies:
            file.write(msgspec.json.encode(body) + b"\n")
    return path
