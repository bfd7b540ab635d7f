"""A tiny Qwen3-VL checkpoint and pictures, shared by the tests of render."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image
from tokenizers import Tokenizer

from tests.render import checkpoints


@pytest.fixture(scope="session")
def qwen3_vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small files of a Qwen3-VL checkpoint."""
    return checkpoints.qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="session")
def tokenizer(qwen3_vl: Path) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_file(str(qwen3_vl / "tokenizer.json"))


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """An image file."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def picture(width: int = 224, height: int = 160, colour: str = "white") -> bytes:
    """A PNG of one colour."""
    return encoded(Image.new("RGB", (width, height), colour))


def data_url(data: bytes, kind: str = "image/png") -> str:
    """The data: URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
