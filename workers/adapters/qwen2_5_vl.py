"""Qwen2.5-VL: window attention in the tower, no deepstack; a video's time runs in seconds."""

from __future__ import annotations

import numpy as np
from torch import nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    Qwen2_5_VLTextModel,
)

from workers.adapters.base import Int64Array, ItemLayout
from workers.adapters.qwen_vl import QwenVlAdapter
from workers.paged_attention import NAME


class Qwen25VlAdapter(QwenVlAdapter):
    """See `qwen_vl`."""

    def make_decoder(self) -> nn.Module:
        model: nn.Module = Qwen2_5_VLTextModel._from_config(  # noqa: SLF001 - its public form needs a full model
            self.config.text_config, attn_implementation=NAME
        )
        return model

    def make_tower(self) -> nn.Module:
        model: nn.Module = Qwen2_5_VisionTransformerPretrainedModel._from_config(  # noqa: SLF001
            self.config.vision_config, attn_implementation="sdpa"
        )
        return model

    def time_steps(self, layout: ItemLayout) -> Int64Array:
        if layout.modality == "image":
            return super().time_steps(layout)
        interval: float = self.config.vision_config.tokens_per_second * layout.seconds_per_grid
        times: Int64Array = (np.arange(layout.grid[0]) * interval).astype(np.int64)
        return times
