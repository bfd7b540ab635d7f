"""LLaVA-1.5 and its relatives: one image, one grid of rows. Pixtral towers break it into lines."""

from __future__ import annotations

from render.families.hf_processor import HfProcessorFamily


class Llava(HfProcessorFamily):
    """`llava`, with a CLIP, SigLIP or Pixtral tower."""

    model_types = ("llava",)
