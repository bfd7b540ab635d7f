"""Image files as the reference treats them, and the limits that hold before decoding."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from protocol.errors import InvalidRequest
from render.image import decode
from tests.render.conftest import encoded

LIMIT = 10**6
GRADIENT = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64)


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(decode(data, LIMIT).image)


def rgb(width: int = 8, height: int = 6) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_lossless_formats_keep_every_pixel(form: str) -> None:
    data = encoded(rgb(), form, **({"lossless": True} if form == "WEBP" else {}))
    decoded = decode(data, LIMIT)
    assert not decoded.converted
    assert (np.asarray(decoded.image) == np.asarray(rgb())).all()


def test_transparency_is_flattened_on_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 255))
    decoded = decode(encoded(image), LIMIT)
    assert decoded.converted
    assert np.asarray(decoded.image).tolist() == [[[255, 255, 255], [255, 0, 0]]]


def test_a_half_transparent_pixel_is_mixed_with_white() -> None:
    found = pixels(encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 128))))
    assert found.tolist() == [[[127, 127, 127]]]


def test_palettes_are_looked_up() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    decoded = decode(encoded(image), LIMIT)
    assert decoded.converted
    assert np.asarray(decoded.image).tolist() == [[[10, 20, 30], [40, 50, 60]]]


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_a_transparent_palette_entry_is_white(form: str) -> None:
    image = Image.new("P", (2, 1), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((0, 0), 0)
    assert pixels(encoded(image, form, transparency=0)).tolist() == [[[255] * 3, [40, 50, 60]]]


def test_a_transparent_grey_is_white() -> None:
    image = Image.new("L", (2, 1), 7)
    image.putpixel((1, 0), 9)
    assert pixels(encoded(image, transparency=7)).tolist() == [[[255] * 3, [9] * 3]]


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [("L", 77, 77), ("1", 1, 255), ("LA", (9, 255), 9), ("LA", (9, 0), 255)],
)
def test_grey_becomes_three_equal_channels(mode: str, value: object, expected: int) -> None:
    decoded = decode(encoded(Image.new(mode, (1, 1), value)), LIMIT)
    assert decoded.converted
    assert np.asarray(decoded.image).tolist() == [[[expected] * 3]]


def test_sixteen_bits_are_converted_as_pillow_does() -> None:
    image = Image.fromarray(GRADIENT)
    assert (pixels(encoded(image)) == np.asarray(image.convert("RGB"))).all()


def test_cmyk_is_converted() -> None:
    found = pixels(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))
    assert found.shape == (8, 8, 3)
    assert found[0, 0, 0] > 200
    assert found[0, 0, 1] < 60


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_its_camera_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = rgb(8, 6)
    decoded = decode(encoded(image, "PNG", exif=exif), LIMIT)
    assert not decoded.converted
    image.getexif()[0x0112] = orientation
    assert decoded.image.size == ((8, 6) if orientation < 5 else (6, 8))
    assert (np.asarray(decoded.image) == np.asarray(ImageOps.exif_transpose(image))).all()


def test_damaged_exif_says_nothing() -> None:
    data = encoded(rgb(8, 6), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff broken")
    assert (pixels(data) == np.asarray(rgb(8, 6))).all()


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame(form: str) -> None:
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    out = io.BytesIO()
    first.save(out, form, save_all=True, append_images=[second], lossless=True)
    assert pixels(out.getvalue())[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_a_clients_fault(form: str, part: float) -> None:
    data = encoded(rgb(64, 48), form)
    cut = data[: int(len(data) * part)]
    with contextlib.suppress(InvalidRequest):
        decode(cut, LIMIT)


@pytest.mark.parametrize("data", [b"", b"no image", b"<svg/>", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not an image in a supported format"):
        decode(data, LIMIT)


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    bomb += struct.pack(">I", zlib.crc32(chunk)) + struct.pack(">I", 0) + b"IDAT" + b"\0" * 4
    with pytest.raises(InvalidRequest, match="60000x60000"):
        decode(bomb, LIMIT)


def test_damaged_files_never_raise_anything_else() -> None:
    """Bytes changed at random places of real files."""
    rng = np.random.default_rng(1)
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        whole = np.frombuffer(encoded(rgb(32, 24), form), np.uint8)
        for _ in range(40):
            data = whole.copy()
            data[rng.integers(0, len(data), 4)] = rng.integers(0, 256, 4)
            with contextlib.suppress(InvalidRequest):
                decode(data.tobytes(), LIMIT)
