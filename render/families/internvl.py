"""InternVL in Hugging Face's form: an image as tiles, each a fixed number of rows."""

from __future__ import annotations

from render.families.hf_processor import HfProcessorFamily


class InternVl(HfProcessorFamily):
    """`internvl`."""

    model_types = ("internvl",)
    outputs = {"pixel_values": "flat"}
    count = "image_num_patches"
    mm_kwargs = frozenset({"min_patches", "max_patches", "crop_to_patches"})
