"""One small file per model family; `TABLE` says which model types have one.

To add a family: copy `qwen_vl.py`, list it here, add a test with a tiny checkpoint.
"""

from __future__ import annotations

import importlib

from protocol.errors import InvalidRequest
from render.families.base import Checkpoint, Family
from render.families.text_only import TextOnly, is_text_only

TABLE: dict[str, str] = {
    "qwen2_vl": "render.families.qwen_vl:QwenVl",
    "qwen2_5_vl": "render.families.qwen_vl:QwenVl",
    "qwen3_vl": "render.families.qwen_vl:QwenVl",
    "qwen3_vl_moe": "render.families.qwen_vl:QwenVl",
    "qwen3_5": "render.families.qwen_vl:QwenVl",
    "qwen3_5_moe": "render.families.qwen_vl:QwenVl",
    "qwen2_audio": "render.families.qwen2_audio:Qwen2Audio",
    "llava": "render.families.llava:Llava",
    "llava_onevision": "render.families.llava_onevision:LlavaOneVision",
    "gemma3": "render.families.gemma3:Gemma3",
    "internvl": "render.families.internvl:InternVl",
    "idefics3": "render.families.idefics3:Idefics3",
    "smolvlm": "render.families.idefics3:Idefics3",
    "mistral3": "render.families.mistral3:Mistral3",
}
"""model_type -> `module:class`, imported on use."""


def create(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint.

    Raises:
        InvalidRequest: its model type is not supported; the message lists those that are.
    """
    entry = TABLE.get(checkpoint.model_type)
    if entry is None:
        if is_text_only(checkpoint.config):
            return TextOnly(checkpoint)
        raise InvalidRequest(
            f"model type {checkpoint.model_type!r} is not supported; supported are text-only "
            "models and " + ", ".join(sorted(TABLE)),
            "model",
        )
    module, _, name = entry.partition(":")
    try:
        family: Family = getattr(importlib.import_module(module), name)(checkpoint)
    except KeyError as error:
        raise InvalidRequest(f"the checkpoint lacks {error}", "model") from None
    return family
