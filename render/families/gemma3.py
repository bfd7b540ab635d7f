"""Gemma 3: a template writes the begin-of-image token, which becomes 256 rows in a frame."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from render.families.base import Checkpoint
from render.families.hf_processor import HfProcessorFamily


class Gemma3(HfProcessorFamily):
    """`gemma3`, with or without pan and scan."""

    model_types = ("gemma3",)
    outputs = {"pixel_values": "flat"}
    count = "num_patches"
    mm_kwargs = frozenset({"do_pan_and_scan"})

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        with contextlib.suppress(KeyError):  # a vocabulary without them joins nothing
            one, two, three, four = (checkpoint.token_id("\n" * count) for count in range(1, 5))
            self.joins = ((one, two, three), (two, one, three), (two, two, four))

    def prompt_id(self, config: Mapping[str, Any]) -> int:
        """The token that a chat template writes for an image."""
        return int(config.get("boi_token_index", 255_999))
