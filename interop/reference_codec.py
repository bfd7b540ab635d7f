"""Runs in the reference's environment: decodes items with the reference's own codec.

A line on standard input is an item as base64; the answer is a line of JSON, field -> [dtype, shape,
SHA-256 of the bytes], or `{"error": ...}`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any


def describe(data: Any) -> Any:
    """A field's value in short."""
    import torch

    if isinstance(data, torch.Tensor):
        raw = data.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(data.dtype).removeprefix("torch.")
        return [dtype, list(data.shape), hashlib.sha256(raw).hexdigest()]
    return data


def main() -> None:
    """Answer each line."""
    from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import decode_mm_kwargs_item

    print("ready", flush=True)
    for line in sys.stdin:
        try:
            item = decode_mm_kwargs_item(line.strip())
            answer = {name: describe(element.data) for name, element in item.items()}
        except Exception as error:  # noqa: BLE001 - whatever it is goes into the report
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
