"""Idefics3 and SmolVLM: an image as a grid of tiles with tags between their rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from protocol.items import Field
from render.checkpoint import read_json
from render.families.hf_processor import HfProcessorFamily, Kind

if TYPE_CHECKING:
    import torch


class Idefics3(HfProcessorFamily):
    """`idefics3` and `smolvlm`."""

    model_types = ("idefics3", "smolvlm")
    outputs = {"pixel_values": "flat", "pixel_attention_mask": "flat"}
    count = "num_patches"
    mm_kwargs = frozenset({"size", "do_image_splitting"})

    def load(self) -> None:
        """SmolVLM's own processor wants a package for its videos; images are Idefics3's."""
        from transformers import AutoImageProcessor, AutoTokenizer, Idefics3Processor

        path = self.checkpoint.path
        options = read_json(Path(path) / "processor_config.json")
        self._processor = Idefics3Processor(
            AutoImageProcessor.from_pretrained(path),
            AutoTokenizer.from_pretrained(path),
            image_seq_len=options.get("image_seq_len", 169),
        )

    def field(self, name: str, value: torch.Tensor, kind: Kind) -> Field:
        """Tiles of the one image, without the leading batch dimension."""
        return super().field(name, value[0], kind)
