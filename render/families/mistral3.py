"""Mistral 3: Pixtral's tower with merged patches; lines of an image end in a break token."""

from __future__ import annotations

from render.families.hf_processor import HfProcessorFamily


class Mistral3(HfProcessorFamily):
    """`mistral3`; the model normalises."""

    model_types = ("mistral3",)
    uint8 = True
