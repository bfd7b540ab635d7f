"""The model families that the engine runs: `model_type` of config.json -> adapter.

To add one: write a file beside these that subclasses `base.Adapter` (`qwen_vl` has what the Qwen
families share), and name it here.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from protocol.errors import InvalidRequest
from workers.adapters.base import Adapter

ADAPTERS = {
    "qwen3_vl": "workers.adapters.qwen3_vl:Qwen3VlAdapter",
    "qwen2_5_vl": "workers.adapters.qwen2_5_vl:Qwen25VlAdapter",
}


def create_adapter(model_dir: str) -> Adapter:
    """The adapter of a checkpoint's family.

    Raises:
        InvalidRequest: the directory holds no model, or one of a family that is not supported.
    """
    path = Path(model_dir) / "config.json"
    if not path.is_file():
        raise InvalidRequest(f"{model_dir} holds no config.json", "model")
    family = json.loads(path.read_bytes()).get("model_type")
    if family not in ADAPTERS:
        raise InvalidRequest(
            f"model_type {family!r} is not supported; supported: {', '.join(sorted(ADAPTERS))}",
            "model",
        )
    module, _, name = ADAPTERS[family].partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), name)(model_dir)
    return adapter
