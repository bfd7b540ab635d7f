"""InternVL in Hugging Face's form: an image as tiles, each a fixed number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL.Image import Image

from protocol.items import Field, Shared
from render.families.base import Processed
from render.families.hf_processor import HfProcessorFamily
from render.families.tensors import from_numpy


class InternVl(HfProcessorFamily):
    """`internvl`."""

    model_types = ("internvl",)
    outputs = {"pixel_values": "flat"}
    count = "image_num_patches"
    mm_kwargs = frozenset({"min_patches", "max_patches", "crop_to_patches"})

    def image(self, image: Image, kwargs: Mapping[str, Any]) -> Processed:
        """The item says which token stands for a row: vLLM's model asks it."""
        fields, runs = super().image(image, kwargs)
        token = from_numpy(np.array(self._embeds, np.int64))
        fields["image_token_id"] = Field(token, Shared(1, keep_on_cpu=True))
        return Processed(fields, runs)
