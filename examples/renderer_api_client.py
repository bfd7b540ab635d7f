r"""A client that is its own coordinator: render, encode and prefill over HTTP, step by step.

This is the program of the Renderer API document with its URLs, model and picture as arguments:

    python -m examples.renderer_api_client --render http://localhost:8100 \
        --encode http://localhost:8200 --prefill http://localhost:8300 --image drawing.png

Any server that speaks the contract can stand at each URL. The workers need `--enable-scale-out`.
"""

from __future__ import annotations

import argparse
import base64
import mimetypes
import os
from pathlib import Path
from typing import Any

import httpx


def data_url(path: Path) -> str:
    """A picture as a `data:` URL."""
    kind = mimetypes.guess_type(path)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def run(render: str, encode: str, prefill: str, model: str, image_url: str) -> dict[str, Any]:
    """The document's three steps; returns the prefill worker's answer."""
    chat_request = {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": image_url}},
                    {"type": "text", "text": "Describe this image."},
                ],
            }
        ],
    }

    with httpx.Client(timeout=120.0) as client:
        # 1. Render: preprocess into token IDs and multimodal features.
        render_response = client.post(
            f"{render}/v1/chat/completions/render", json=chat_request
        ).json()

        features = render_response["features"]
        # features["kwargs_data"]["image"][0]  -> pixel_values + image_grid_thw
        # features["mm_metadata"]["image"][0]  -> image_grid_thw only

        # 2. Encode: send full kwargs_data so the encoder can run vision towers.
        encode_response = client.post(
            f"{encode}/inference/v1/generate",
            json={
                "token_ids": render_response["token_ids"],
                "features": {
                    "mm_hashes": features["mm_hashes"],
                    "mm_placeholders": features["mm_placeholders"],
                    "kwargs_data": features["kwargs_data"],
                },
                "sampling_params": {"max_tokens": 1},
            },
        ).json()
        ec_transfer_params = encode_response["ec_transfer_params"]

        # 3. Prefill: omit kwargs_data; load embeddings via EC connector.
        prefill_response: dict[str, Any] = client.post(
            f"{prefill}/inference/v1/generate",
            json={
                "token_ids": render_response["token_ids"],
                "features": {
                    "mm_hashes": features["mm_hashes"],
                    "mm_placeholders": features["mm_placeholders"],
                    "mm_metadata": features["mm_metadata"],
                },
                "ec_transfer_params": ec_transfer_params,
                "sampling_params": {"max_tokens": 64},
            },
        ).json()
    return prefill_response


def main() -> None:
    """Run it with the URLs of the command line, or of RENDER, ENCODE, PREFILL and MODEL."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    env = os.environ.get
    parser.add_argument("--render", default=env("RENDER", "http://localhost:8100"))
    parser.add_argument("--encode", default=env("ENCODE", "http://localhost:8200"))
    parser.add_argument("--prefill", default=env("PREFILL", "http://localhost:8300"))
    parser.add_argument("--model", default=env("MODEL", "triptych-demo"))
    parser.add_argument("--image", type=Path, required=True)
    given = parser.parse_args()
    answer = run(given.render, given.encode, given.prefill, given.model, data_url(given.image))
    print(answer["choices"][0]["token_ids"])


if __name__ == "__main__":
    main()
