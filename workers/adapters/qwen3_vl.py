"""Qwen3-VL: deepstack features; a video's grid steps stand apart, with timestamps between."""

from __future__ import annotations

from torch import nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel, Qwen3VLVisionModel

from workers.adapters.qwen_vl import QwenVlAdapter
from workers.paged_attention import NAME


class Qwen3VlAdapter(QwenVlAdapter):
    """See `qwen_vl`; nothing else is particular."""

    def make_decoder(self) -> nn.Module:
        model: nn.Module = Qwen3VLTextModel._from_config(  # noqa: SLF001 - its public form needs a full model
            self.config.text_config, attn_implementation=NAME
        )
        return model

    def make_tower(self) -> nn.Module:
        model: nn.Module = Qwen3VLVisionModel._from_config(  # noqa: SLF001
            self.config.vision_config, attn_implementation="sdpa"
        )
        return model
