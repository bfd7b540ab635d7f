"""What a model family must tell the engine.

An adapter knows names and arithmetic of one family: which fields an item has, how many embedding
rows it gives, which positions its tokens take, how the vision tower is run. It holds no weights:
`LanguageModel` and `VisionTower` do, and the model's thread alone calls them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from protocol.features import PlaceholderRange
from protocol.items import Field

if TYPE_CHECKING:
    from workers.paged_attention import StepLayout

Int64Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a language model.

    Attributes:
        hidden: width of a token's embedding.
        deepstack: how many further embeddings a media token brings, each added after one of the
            first layers.
        max_len: tokens of context.
        eos: ids that end a generation.
        default_max_tokens: outputs where a request sets no limit, 0 for what the context takes.
    """

    hidden: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    deepstack: int
    eos: frozenset[int]
    default_max_tokens: int = 0

    @property
    def embedding_width(self) -> int:
        """Width of an embedding row as it travels: the token's, then the deepstack ones."""
        return self.hidden * (1 + self.deepstack)


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """What an item's metadata says: its grid of patches and the rows that it gives.

    Attributes:
        modality: `image` or `video`.
        grid: patches in time, height and width.
        rows: embedding rows.
        seconds_per_grid: time between grid steps of a video, 1.0 for images.
    """

    modality: str
    grid: tuple[int, int, int]
    rows: int
    seconds_per_grid: float = 1.0

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """An item that the vision tower can take: [patches, values of a patch]."""

    layout: ItemLayout
    pixels: torch.Tensor


class LanguageModel(ABC):
    """The decoder of a model, with its weights."""

    @abstractmethod
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden]."""

    @abstractmethod
    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        media_rows: torch.Tensor | None,
        deepstack: Sequence[torch.Tensor],
        layout: StepLayout,
    ) -> torch.Tensor:
        """Run the layers over a step.

        Args:
            embeds: [tokens, hidden].
            positions: [3, tokens].
            media_rows: indices of the tokens that media fill, None for none.
            deepstack: per level, [media tokens, hidden] to add after that layer.
            layout: where each token's keys and values go.

        Returns:
            [tokens, hidden], normalised.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocab] in float32."""


class VisionTower(ABC):
    """The encoder of a model, with its weights."""

    @abstractmethod
    def encode(self, inputs: Sequence[EncoderInput]) -> list[torch.Tensor]:
        """Run several items at once: [rows, embedding_width] per item, as it would be alone."""


class Adapter(ABC):
    """One model family. Safe to call from any thread."""

    shape: ModelShape
    dtype: torch.dtype
    """The checkpoint's."""

    @abstractmethod
    def load_language(
        self, model_dir: str, dtype: torch.dtype, device: torch.device
    ) -> LanguageModel:
        """Read the decoder's weights and nothing else."""

    @abstractmethod
    def load_vision(
        self, model_dir: str, dtype: torch.dtype, device: torch.device, *, normalize: bool
    ) -> VisionTower:
        """Read the vision tower's weights and nothing else.

        Args:
            model_dir: directory of the checkpoint.
            dtype, device: of the weights.
            normalize: pixels come raw and are rescaled and normalised here (wire-protocol §4.6).
        """

    @abstractmethod
    def layout(self, modality: str, fields: Mapping[str, Field], where: str) -> ItemLayout:
        """What an item's metadata says.

        Args:
            modality: the key in `features`.
            fields: of the item; encoder inputs are ignored.
            where: names the item in errors.

        Raises:
            InvalidRequest: a field is missing or has an impossible value.
        """

    @abstractmethod
    def encoder_input(
        self, layout: ItemLayout, fields: Mapping[str, Field], where: str
    ) -> EncoderInput:
        """The item as the vision tower takes it.

        Raises:
            InvalidRequest: pixels are missing or do not fit the layout.
        """

    @abstractmethod
    def positions(
        self, num_tokens: int, items: Sequence[tuple[PlaceholderRange, ItemLayout]]
    ) -> tuple[Int64Array, int]:
        """Positions of a prompt's tokens.

        Args:
            num_tokens: length of the prompt.
            items: its media in prompt order.

        Returns:
            [3, num_tokens], and what to add to a later token's index to get its position.
        """
