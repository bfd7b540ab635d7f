"""Requests as a client makes them: drawings, messages, and what an answer says."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from examples.drawings import Example, Kind, examples
from tests.cluster.fleet import MODEL


def png(image: Image.Image) -> bytes:
    """A picture as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def data_url(image: Image.Image) -> str:
    """A picture as a `data:` URL."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def message(prompt: str, images: Sequence[Image.Image] = ()) -> dict[str, Any]:
    """A user message: the pictures, then the question."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(image)}} for image in images
    ]
    return {"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}


def chat(example: Example, **fields: Any) -> dict[str, Any]:
    """The body of a greedy chat request about an example."""
    return {
        "model": MODEL,
        "messages": [message(example.prompt, example.images)],
        "temperature": 0,
        "max_tokens": 96,
        **fields,
    }


def unseen(kind: Kind, count: int, *, images: int | None = None, seed: int = 1) -> list[Example]:
    """Examples from a seed that training does not use."""
    rng = np.random.default_rng([20_260_000, seed])
    stream = examples(rng, kind, images=images)
    return [next(stream) for _ in range(count)]


def mixed(count: int, seed: int = 2) -> list[Example]:
    """Examples of all kinds in turn, without a picture and with one to four."""
    kinds: tuple[tuple[Kind, int | None], ...] = (
        ("describe", None),
        ("text", None),
        ("colour", None),
        ("which", 4),
        ("count", None),
        ("which", 2),
        ("which", 3),
        ("describe", None),
    )
    made = []
    for index in range(count):
        kind, images = kinds[index % len(kinds)]
        made += unseen(kind, 1, images=images, seed=seed * 1000 + index)
    return made
