"""Families whose Hugging Face processor says all there is to know.

The processor is run on the placeholder alone with one image: its `input_ids` are the tokens that
the placeholder becomes, and of its outputs each family names those that the model takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from PIL.Image import Image

from protocol.items import Batched, Factory, Field, Flat, Tensor
from render.families.base import Checkpoint, Family, Placeholder, Processed, Run
from render.families.tensors import from_numpy, from_torch, model_dtype

if TYPE_CHECKING:
    import torch

Kind = Literal["batched", "flat", "metadata"]
"""How items of a field are put together; `metadata` is batched and stays on the CPU."""


class HfProcessorFamily(Family):
    """Images through `AutoProcessor`."""

    outputs: ClassVar[Mapping[str, Kind]] = {"pixel_values": "batched"}
    """Processor outputs that belong to an item, in the order of the contract."""

    count: ClassVar[str] = ""
    """Name of a metadata field with the number of rows of `pixel_values`, "" for none."""

    uint8: ClassVar[bool] = False
    """Whether the model normalises: pixels leave as bytes (wire-protocol §4.6)."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._embeds = self.embed_id(checkpoint.config)
        token = self.prompt_id(checkpoint.config)
        self._text = checkpoint.token_text(token)
        self.placeholders = {"image": Placeholder(token, self._text)}
        self._processor: Any = None

    def embed_id(self, config: Mapping[str, Any]) -> int:
        """The token that takes an embedding row."""
        found = config.get("image_token_id", config.get("image_token_index"))
        if not isinstance(found, int):
            raise KeyError("image_token_id")
        return found

    def prompt_id(self, config: Mapping[str, Any]) -> int:
        """The token that a chat template writes for an image."""
        return self.embed_id(config)

    def load(self) -> None:
        from transformers import AutoProcessor

        self._processor = AutoProcessor.from_pretrained(self.checkpoint.path)

    def image(self, image: Image, kwargs: Mapping[str, Any]) -> Processed:
        raw = {"do_rescale": False, "do_normalize": False} if self.uint8 else {}
        out = self._processor(
            text=[self._text],
            images=[image],
            return_tensors="pt",
            add_special_tokens=False,
            **kwargs,
            **raw,
        )
        fields = {
            name: self.field(name, out[name], kind)
            for name, kind in self.outputs.items()
            if name in out
        }
        pixels = fields["pixel_values"].data
        if self.count and isinstance(pixels, Tensor):
            rows = from_numpy(np.array(pixels.shape[0], dtype=np.int64))
            fields[self.count] = Field(rows, Batched(keep_on_cpu=True))
        return Processed(fields, self.runs(out["input_ids"][0].tolist()))

    def field(self, name: str, value: torch.Tensor, kind: Kind) -> Field:
        """One output as the contract has it; floats are cast to the model's dtype."""
        import torch

        factory: Factory
        if value.is_floating_point():
            value = value.to(getattr(torch, model_dtype(self.checkpoint.config)))
        if kind == "flat":
            factory = Flat([[[0, value.shape[0], None]]])
        else:
            value, factory = value[0], Batched(keep_on_cpu=kind == "metadata")
        return Field(from_torch(value), factory)

    def runs(self, ids: Sequence[int]) -> tuple[Run, ...]:
        """The tokens of an item, run by run."""
        return tuple(
            Run(token, len(list(group)), token == self._embeds)
            for token, group in itertools.groupby(ids)
        )
