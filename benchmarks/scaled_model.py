"""The demo model's architecture at other sizes, with random weights: as much work as is wanted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from deploy.model_source import DEMO_DIRECTORY

SIDE = 512
"""Pixels of the pictures' sides that the model takes as they are."""

PATCHES = (SIDE // 16) ** 2
_COPIED = ("*.jinja", "tokenizer*", "*preprocessor_config.json", "generation_config.json")


def write(directory: Path, *, text_layers: int, vision_layers: int) -> None:
    """Save a checkpoint.

    Args:
        directory: made if need be.
        text_layers: of the language model, 256 wide.
        vision_layers: of the vision tower, 192 wide; at least 2.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for pattern in _COPIED:
        for file in DEMO_DIRECTORY.glob(pattern):
            shutil.copy(file, directory)
    config = Qwen3VLConfig.from_pretrained(DEMO_DIRECTORY)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size = 256, 1024
    text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads = text_layers, 8, 4
    vision.hidden_size, vision.intermediate_size, vision.num_heads = 192, 768, 6
    vision.depth, vision.out_hidden_size = vision_layers, text.hidden_size
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(config).save_pretrained(directory)
    settings = directory / "preprocessor_config.json"
    values = json.loads(settings.read_text())
    values["size"] = {"longest_edge": SIDE * SIDE, "shortest_edge": 4096}
    settings.write_text(json.dumps(values))
