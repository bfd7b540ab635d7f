"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches as uint8, rows by grid.

The encoder rescales and normalises (wire-protocol §4.6), so patches leave as the resized bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Image, new

from protocol.items import Batched, Field, Flat
from render.checkpoint import read_json
from render.families.base import Checkpoint, Family, Placeholder, Processed, Run
from render.families.patches import PatchSpec, patches
from render.families.tensors import from_numpy, from_torch, grid


class QwenVl(Family):
    """Images of the Qwen vision-language models."""

    model_types = (
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
    )
    mm_kwargs = frozenset({"size", "min_pixels", "max_pixels", "do_resize"})

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        config = checkpoint.config
        start = checkpoint.token_text(config["vision_start_token_id"])
        end = checkpoint.token_text(config["vision_end_token_id"])
        self._image_id: int = config["image_token_id"]
        self.placeholders = {
            "image": Placeholder(
                self._image_id, start + checkpoint.token_text(self._image_id) + end
            ),
        }
        options = read_json(Path(checkpoint.path) / "preprocessor_config.json")
        self._spec = PatchSpec.read(options)
        self._merge: int = options.get("merge_size", 2)
        self._processor: Any = None

    def load(self) -> None:
        """Load what the usual checkpoint needs; another gets the model's own processor."""
        if self._spec is None:
            self._own_processor()
        else:
            patches(new("RGB", (64, 64)), self._spec)

    def image(self, image: Image, kwargs: Mapping[str, Any]) -> Processed:
        spec = self._spec.bounded(kwargs) if self._spec else None
        if spec is not None:
            values, thw = patches(image, spec)
            pixels = from_numpy(values)
        else:
            out = self._own_processor()(
                images=image,
                return_tensors="pt",
                **_sized(kwargs),
                do_rescale=False,
                do_normalize=False,
            )
            pixels = from_torch(out["pixel_values"])
            t, h, w = (int(n) for n in out["image_grid_thw"][0])
            thw = (t, h, w)
        return Processed(
            {
                "pixel_values": Field(pixels, Flat([[[0, pixels.shape[0], None]]])),
                "image_grid_thw": Field(grid(thw), Batched(keep_on_cpu=True)),
            },
            (Run(self._image_id, math.prod(thw) // self._merge**2),),
        )

    def _own_processor(self) -> Any:
        if self._processor is None:
            from transformers import AutoImageProcessor

            self._processor = AutoImageProcessor.from_pretrained(self.checkpoint.path)
        return self._processor


def _sized(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The older pixel limits as `size`."""
    rest = dict(kwargs)
    low, high = rest.pop("min_pixels", None), rest.pop("max_pixels", None)
    if low is None and high is None:
        return rest
    size = dict(rest.get("size") or {})
    if low is not None:
        size["shortest_edge"] = low
    if high is not None:
        size["longest_edge"] = high
    return {**rest, "size": size}
