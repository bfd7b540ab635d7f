"""What the Qwen vision-language families share: fields, grids, three-axis positions, decoder."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig

from protocol.errors import InvalidRequest
from protocol.features import PlaceholderRange
from protocol.items import Field, Tensor, itemsize
from workers.adapters.base import (
    Adapter,
    EncoderInput,
    Int64Array,
    ItemLayout,
    LanguageModel,
    ModelShape,
    VisionTower,
)
from workers.paged_attention import StepLayout
from workers.weights import build_on_meta, load_into

_FIELDS = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}
"""Modality -> names of the pixels and of the grid."""

_FLOATS: Final = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_PIXEL_DTYPES: Final = {"uint8": torch.uint8, **_FLOATS}

_MAX_GRID: Final = 1 << 16
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""The image processor's defaults, for a preprocessor_config.json that leaves them out."""


class QwenVlAdapter(Adapter):
    """Base of the families: a subclass names its modules and its positions of videos.

    Args:
        model_dir: directory of the checkpoint.
    """

    def __init__(self, model_dir: str) -> None:
        self.config = AutoConfig.from_pretrained(model_dir)
        text, vision = self.config.text_config, self.config.vision_config
        self.merge: int = vision.spatial_merge_size
        self._patch_values: int = (
            vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        )
        self.dtype = _dtype(self.config)
        generation = _read_json(model_dir, "generation_config.json")
        heads: int = text.num_attention_heads
        self.shape = ModelShape(
            hidden=text.hidden_size,
            layers=text.num_hidden_layers,
            kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocab=text.vocab_size,
            max_len=text.max_position_embeddings,
            deepstack=len(getattr(vision, "deepstack_visual_indexes", ())),
            eos=_ids(generation.get("eos_token_id", getattr(text, "eos_token_id", None))),
            default_max_tokens=generation.get("max_new_tokens") or 0,
        )

    @abstractmethod
    def make_decoder(self) -> nn.Module:
        """The family's text model, with paged attention."""

    @abstractmethod
    def make_tower(self) -> nn.Module:
        """The family's vision model."""

    def time_steps(self, layout: ItemLayout) -> Int64Array:
        """Position of each grid step in time, relative to the first."""
        return np.arange(layout.grid[0], dtype=np.int64)

    def load_language(
        self, model_dir: str, dtype: torch.dtype, device: torch.device
    ) -> LanguageModel:
        decoder = build_on_meta(self.make_decoder)
        load_into(decoder, model_dir, ("model.language_model.", "language_model.model.", "model."),
                  dtype, device)  # fmt: skip
        head = None
        if not getattr(self.config, "tie_word_embeddings", False):
            text = self.config.text_config
            head = build_on_meta(lambda: nn.Linear(text.hidden_size, text.vocab_size, bias=False))
            load_into(head, model_dir, ("lm_head.", "language_model.lm_head."), dtype, device)
        return _Decoder(decoder, head)

    def load_vision(
        self, model_dir: str, dtype: torch.dtype, device: torch.device, *, normalize: bool
    ) -> VisionTower:
        tower = build_on_meta(self.make_tower)
        load_into(tower, model_dir, ("model.visual.", "visual."), dtype, device)
        scale = _normalisation(model_dir, device) if normalize else None
        return _Tower(tower, self.merge, self.config.vision_config.in_channels, scale)

    def layout(self, modality: str, fields: Mapping[str, Field], where: str) -> ItemLayout:
        if modality not in _FIELDS:
            raise InvalidRequest(f"modality {modality!r} is not supported by this model", where)
        name = _FIELDS[modality][1]
        data = fields[name].data if name in fields else None
        if not isinstance(data, Tensor) or data.dtype != "int64" or data.shape != (3,):
            raise InvalidRequest(f"item needs {name}, an int64 tensor of shape [3]", where)
        steps, height, width = (int(n) for n in np.frombuffer(data.data, dtype="<i8"))
        small = all(0 < n < _MAX_GRID for n in (steps, height, width))
        if not small or height % self.merge or width % self.merge:
            raise InvalidRequest(f"{name} [{steps}, {height}, {width}] is impossible", where)
        return ItemLayout(
            modality,
            (steps, height, width),
            steps * height * width // self.merge**2,
            _seconds(fields, where),
        )

    def encoder_input(
        self, layout: ItemLayout, fields: Mapping[str, Field], where: str
    ) -> EncoderInput:
        name = _FIELDS[layout.modality][0]
        data = fields[name].data if name in fields else None
        shape = (layout.patches, self._patch_values)
        if not isinstance(data, Tensor) or data.shape != shape:
            raise InvalidRequest(f"item needs {name}, a tensor of shape {list(shape)}", where)
        dtype = _PIXEL_DTYPES.get(data.dtype)
        if dtype is None:
            raise InvalidRequest(f"{name} of dtype {data.dtype} is not supported", where)
        # The copy makes the pixels writable and aligned, and independent of the message.
        pixels = torch.frombuffer(bytearray(data.data), dtype=dtype).view(shape)
        return EncoderInput(layout, pixels)

    def positions(
        self, num_tokens: int, items: Sequence[tuple[PlaceholderRange, ItemLayout]]
    ) -> tuple[Int64Array, int]:
        positions = np.empty((3, num_tokens), dtype=np.int64)
        token = position = 0
        for placeholder, layout in items:
            for start, part in self._runs(placeholder, layout):
                text = start - token
                positions[:, token:start] = np.arange(position, position + text)
                position += text
                token = start + part.shape[1]
                positions[:, start:token] = part + position
                position += max(layout.grid[1], layout.grid[2]) // self.merge
        positions[:, token:] = np.arange(position, position + num_tokens - token)
        return positions, int(positions.max()) + 1 - num_tokens

    def _runs(
        self, placeholder: PlaceholderRange, layout: ItemLayout
    ) -> Iterator[tuple[int, Int64Array]]:
        """Per run of tokens that embeddings fill: its first token, positions [3, length] from 0.

        A run holds whole grid steps; a family that writes text between them has one run per step.
        """
        height, width = layout.grid[1] // self.merge, layout.grid[2] // self.merge
        times = self.time_steps(layout)
        step = 0
        for start, length in placeholder.is_embed or ((0, placeholder.length),):
            count, rest = divmod(length, height * width)
            if rest:
                raise InvalidRequest(
                    f"a placeholder run of {length} tokens does not hold whole grid steps of "
                    f"{height * width}",
                    "features.mm_placeholders",
                )
            part = np.empty((3, length), dtype=np.int64)
            part[0] = np.repeat(times[step : step + count] - times[step], height * width)
            part[1] = np.tile(np.repeat(np.arange(height), width), count)
            part[2] = np.tile(np.arange(width), height * count)
            step += count
            yield placeholder.offset + start, part


class _Decoder(LanguageModel):
    """A decoder of transformers' modules: embeddings, layers, norm, head."""

    def __init__(self, model: nn.Module, head: nn.Module | None) -> None:
        self._embed = model.get_submodule("embed_tokens")
        self._layers = list(model.get_submodule("layers").children())
        self._norm = model.get_submodule("norm")
        self._rotary = model.get_submodule("rotary_emb")
        weight = self._embed.weight if head is None else head.weight
        if not isinstance(weight, torch.Tensor):
            raise TypeError("the output head has no weight")
        self._head = weight

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self._embed(token_ids)
        return embeds

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        media_rows: torch.Tensor | None,
        deepstack: Sequence[torch.Tensor],
        layout: StepLayout,
    ) -> torch.Tensor:
        hidden = embeds[None]
        rotary = self._rotary(hidden, positions[:, None])
        for index, layer in enumerate(self._layers):
            hidden = layer(hidden, position_embeddings=rotary, layout=layout)
            if media_rows is not None and index < len(deepstack):
                hidden[0].index_add_(0, media_rows, deepstack[index])
        normed: torch.Tensor = self._norm(hidden)
        return normed[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden, self._head).float()


class _Tower(VisionTower):
    """A vision model of transformers' modules, with the normalisation of raw pixels before it."""

    def __init__(
        self,
        tower: nn.Module,
        merge: int,
        channels: int,
        normalisation: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        self._tower = tower
        self._merge = merge
        self._channels = channels
        self._normalisation = normalisation
        parameter = next(tower.parameters())
        self._dtype, self._device = parameter.dtype, parameter.device

    def encode(self, inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        pixels = [self._prepare(item.pixels) for item in inputs]
        grids = torch.tensor([item.layout.grid for item in inputs], device=self._device)
        output = self._tower(torch.cat(pixels), grid_thw=grids)
        levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
        rows = torch.cat(levels, dim=-1)
        return list(torch.split(rows, [item.layout.rows for item in inputs]))

    def _prepare(self, pixels: torch.Tensor) -> torch.Tensor:
        pixels = pixels.to(self._device)
        if self._normalisation is None:
            return pixels.to(self._dtype)
        scale, shift = self._normalisation
        channels = pixels.float().view(len(pixels), self._channels, -1)
        return (channels * scale + shift).view(len(pixels), -1).to(self._dtype)


def _normalisation(model_dir: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(x * rescale - mean) / std as scale and shift per channel, [channels, 1] each."""
    config = _read_json(model_dir, "preprocessor_config.json") or _read_json(
        model_dir, "processor_config.json"
    ).get("image_processor", {})
    rescale = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    mean, std = torch.zeros(1), torch.ones(1)
    if config.get("do_normalize", True):
        mean = torch.tensor(config.get("image_mean", _MEAN))
        std = torch.tensor(config.get("image_std", _STD))
    scale, shift = rescale / std, -mean / std
    return scale[:, None].to(device), shift[:, None].to(device)


def _dtype(config: Any) -> torch.dtype:
    for part in (config, config.text_config):
        dtype = getattr(part, "dtype", None)
        if isinstance(dtype, torch.dtype):
            return dtype
    return torch.float32


def _read_json(model_dir: str, name: str) -> dict[str, Any]:
    """A JSON file of the checkpoint, empty where there is none."""
    path = Path(model_dir) / name
    content: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return content


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _seconds(fields: Mapping[str, Field], where: str) -> float:
    """`second_per_grid_ts` of a video item, 1.0 where it has none."""
    if "second_per_grid_ts" not in fields:
        return 1.0
    data = fields["second_per_grid_ts"].data
    if isinstance(data, Tensor) and data.dtype in _FLOATS and data.nbytes == itemsize(data.dtype):
        data = float(torch.frombuffer(bytearray(data.data), dtype=_FLOATS[data.dtype])[0])
    if isinstance(data, int | float) and 0 < data < _MAX_GRID:
        return float(data)
    raise InvalidRequest("second_per_grid_ts must be one positive number", where)
