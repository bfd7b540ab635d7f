"""Uploaded bytes to an RGB image, with the limits that hold before anything is decoded.

Conversions are those of the reference: EXIF orientation is applied, transparency is flattened on
white, other modes are converted by Pillow, an animation gives its first frame.
"""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from typing import NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from protocol.errors import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "ICO", "PPM")
"""Decoders that untrusted bytes may reach; those that run other programs are not among them."""

Image.MAX_IMAGE_PIXELS = None  # `decode` has its own limit, which answers as an error of ours

_BROKEN = (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, KeyError,
           OverflowError, AttributeError, struct.error, zlib.error, MemoryError)  # fmt: skip
"""What Pillow's decoders raise on damaged files."""


class Decoded(NamedTuple):
    """An RGB image, and whether its file's mode was another one."""

    image: Image.Image
    converted: bool


def decode(
    data: bytes, max_pixels: int, background: tuple[int, int, int] = (255, 255, 255)
) -> Decoded:
    """Decode one image; `background` shows through where it is transparent.

    Raises:
        InvalidRequest: it has too many pixels, or is not an image that can be decoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _open(data)
        width, height = image.size
        if width * height > max_pixels:
            raise InvalidRequest(
                f"the image has {width}x{height} pixels, more than the {max_pixels} allowed"
            )
        try:
            with contextlib.suppress(Exception):  # damaged EXIF says nothing about the pixels
                ImageOps.exif_transpose(image, in_place=True)
            image.load()
            if image.mode == "RGB":
                return Decoded(image, False)
            return Decoded(_rgb(image, background), True)
        except _BROKEN:
            raise InvalidRequest("the image is truncated or damaged") from None


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (UnidentifiedImageError, *_BROKEN):
        raise InvalidRequest("the data is not an image in a supported format") from None


def _rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode != "RGBA":
        if image.mode not in ("LA", "PA") and "transparency" not in image.info:
            return image.convert("RGB")
        image = image.convert("RGBA")
    flat = Image.new("RGB", image.size, background)
    flat.paste(image, mask=image.getchannel("A"))
    return flat
