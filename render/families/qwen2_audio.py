"""Qwen2-Audio: a sound as log-mel features of at most 30 seconds, a row per 40 ms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.items import Batched, Field
from render.checkpoint import read_json
from render.families.base import Checkpoint, Family, Placeholder, Processed, Run
from render.families.tensors import from_torch, model_dtype

if TYPE_CHECKING:
    from render.audio import Samples

_FIELDS = ("input_features", "feature_attention_mask")


class Qwen2Audio(Family):
    """`qwen2_audio`; the features are those of the model's own processor."""

    model_types = ("qwen2_audio",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        config = checkpoint.config
        found = config.get("audio_token_id", config.get("audio_token_index"))
        if not isinstance(found, int):
            raise KeyError("audio_token_id")
        self._token = found
        self._text = checkpoint.token_text(found)
        framed = f"<|audio_bos|>{self._text}<|audio_eos|>"
        self.placeholders = {"audio": Placeholder(found, framed)}
        options = read_json(Path(checkpoint.path) / "preprocessor_config.json")
        self.sample_rate = int(options.get("sampling_rate", 16_000))
        self._processor: Any = None

    def load(self) -> None:
        from transformers import AutoProcessor

        self._processor = AutoProcessor.from_pretrained(self.checkpoint.path)

    def audio(self, samples: Samples, kwargs: Mapping[str, Any]) -> Processed:
        import torch

        out = self._processor(
            text=[self._text],
            audio=[samples],
            sampling_rate=self.sample_rate,
            truncation=True,
            return_tensors="pt",
            add_special_tokens=False,
            **kwargs,
        )
        rows = out["input_ids"][0].tolist().count(self._token)
        if not rows:
            raise ValueError("it is too short for the model to hear")
        dtype = getattr(torch, model_dtype(self.checkpoint.config))
        fields: dict[str, Field] = {}
        for name in _FIELDS:
            value = out[name][0]
            value = value.to(dtype) if value.is_floating_point() else value
            fields[name] = Field(from_torch(value), Batched())
        return Processed(fields, (Run(self._token, rows),))
