"""Pictures and clips of odd sizes, modes and formats, the same for the same random state."""

from __future__ import annotations

import base64
import io
import random
from fractions import Fraction

import av
import numpy as np
from PIL import Image

_SIZES = (
    (1, 1), (3, 5), (7, 7), (16, 16), (28, 28), (29, 31), (64, 64), (56, 28), (100, 37), (37, 100),
    (224, 160), (255, 257), (320, 200), (13, 200), (200, 13), (640, 360), (500, 333),
)  # fmt: skip
_FORMS = {
    "RGB": ("PNG", "JPEG", "WEBP", "BMP"),
    "L": ("PNG", "JPEG", "BMP"),
    "RGBA": ("PNG", "WEBP"),
    "LA": ("PNG",),
    "P": ("PNG", "GIF", "BMP"),
    "1": ("PNG", "BMP"),
    "CMYK": ("JPEG",),
    "I;16": ("PNG",),
}
_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "BMP": "image/bmp",
          "GIF": "image/gif"}  # fmt: skip


def picture(rng: random.Random) -> str:
    """The data: URL of a random picture."""
    width, height = rng.choice(_SIZES)
    mode = rng.choice(("RGB", "RGB", "RGB", *_FORMS))
    form = rng.choice(_FORMS[mode])
    image = _image(rng, width, height, mode)
    options: dict[str, object] = {}
    if mode == "P" and form != "BMP" and rng.random() < 0.5:
        options["transparency"] = rng.randrange(4)
    if form == "WEBP":
        options["lossless"] = True
    if mode == "RGB" and form == "JPEG" and rng.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = rng.randint(2, 8)  # orientation
        options["exif"] = exif
    if form in ("GIF", "WEBP") and rng.random() < 0.3:
        options |= {"save_all": True, "append_images": [_image(rng, width, height, mode)]}
    out = io.BytesIO()
    image.save(out, form, **options)
    return data_url(out.getvalue(), _KINDS[form])


def clip(rng: random.Random) -> str:
    """The data: URL of a short video."""
    frames, fps = rng.randint(4, 14), rng.choice((2, 4, 8))
    width, height = rng.choice(((64, 48), (96, 64), (128, 96)))
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, fps)
        for _ in range(frames):
            pixels = np.array(_image(rng, width, height, "RGB"))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return data_url(out.getvalue(), "video/mp4")


def data_url(data: bytes, kind: str) -> str:
    """The data: URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _image(rng: random.Random, width: int, height: int, mode: str) -> Image.Image:
    numbers = np.random.default_rng(rng.getrandbits(32))
    coarse = numbers.integers(0, 255, (max(2, height // 8), max(2, width // 8), 4), np.uint8)
    image = Image.fromarray(coarse, "RGBA").resize((width, height), Image.Resampling.BICUBIC)
    if mode == "RGBA":
        return image
    if mode == "I;16":
        return Image.fromarray(numbers.integers(0, 65535, (height, width), np.uint16))
    opaque = image.convert("RGB")
    if mode == "LA":
        return Image.merge("LA", (opaque.convert("L"), image.getchannel("A")))
    return opaque.convert(mode)
