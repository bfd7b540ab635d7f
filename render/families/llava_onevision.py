"""LLaVA-OneVision: an image as crops of several resolutions."""

from __future__ import annotations

from render.families.hf_processor import HfProcessorFamily


class LlavaOneVision(HfProcessorFamily):
    """`llava_onevision`."""

    model_types = ("llava_onevision",)
    outputs = {"pixel_values": "batched", "image_sizes": "metadata"}
