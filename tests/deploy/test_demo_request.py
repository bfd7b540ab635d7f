"""The line that is printed for pasting."""

from __future__ import annotations

import base64
import io
import json
import shlex

import pytest
from PIL import Image

from deploy import demo_request
from deploy.config import ClusterConfig


def body_of(line: str) -> dict[str, object]:
    parts = shlex.split(line)
    return dict(json.loads(parts[parts.index("-d") + 1]))


def test_the_line_holds_a_drawing_and_a_question() -> None:
    line = demo_request.curl(ClusterConfig(), "http://127.0.0.1:8000")
    assert "\n" not in line
    assert shlex.split(line)[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    body = body_of(line)
    assert body == demo_request.body("triptych-demo")
    assert len(line) < 1000


def test_the_drawing_is_what_its_caption_says() -> None:
    image = Image.open(io.BytesIO(demo_request.drawing())).convert("RGB")
    assert image.getpixel((40, 48)) == (220, 30, 30)
    assert image.getpixel((119, 48)) == (40, 70, 220)
    assert image.getpixel((2, 2)) == (255, 255, 255)


def test_the_picture_travels_as_a_data_url() -> None:
    message = json.dumps(demo_request.body("m"))
    encoded = message.partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded) == demo_request.drawing()


def test_a_key_is_named_and_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    line = demo_request.curl(ClusterConfig(api_keys=("s3cret",)), "http://h:1")
    assert "s3cret" not in line
    assert '"Authorization: Bearer $TRIPTYCH_API_KEY"' in line
