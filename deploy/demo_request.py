"""A request to try a cluster with: a curl line with a drawing in it, for pasting."""

from __future__ import annotations

import base64
import io
import json
import shlex

from deploy.config import ClusterConfig

CAPTION = "a red circle and a blue square"
"""What the drawing shows, as the demo model says it."""

_SIZE = (160, 96)


def drawing() -> bytes:
    """A small PNG of a red circle and a blue square on white."""
    from PIL import Image, ImageDraw

    image = Image.new("P", _SIZE, 0)
    image.putpalette([255, 255, 255, 220, 30, 30, 40, 70, 220])
    draw = ImageDraw.Draw(image)
    draw.ellipse((18, 26, 62, 70), fill=1)
    draw.rectangle((97, 26, 141, 70), fill=2)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, bits=2)
    return buffer.getvalue()


def body(model: str) -> dict[str, object]:
    """A chat completion about the drawing."""
    url = "data:image/png;base64," + base64.b64encode(drawing()).decode()
    return {
        "model": model,
        "max_tokens": 64,
        "temperature": 0,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": url}},
                    {"type": "text", "text": "Describe this image."},
                ],
            }
        ],
    }


def curl(config: ClusterConfig, url: str) -> str:
    """The line; a key is named by its variable, never printed."""
    parts = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    line = " ".join(shlex.quote(part) for part in parts)
    if config.api_keys:
        line += ' -H "Authorization: Bearer $TRIPTYCH_API_KEY"'
    payload = json.dumps(body(config.model_name), separators=(",", ":"))
    return f"{line} -d {shlex.quote(payload)}"
