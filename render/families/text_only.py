"""Models without media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render.families.base import Family

_MEDIA_KEYS = frozenset(
    {
        "vision_config", "audio_config", "image_token_id", "image_token_index", "video_token_id",
        "audio_token_id", "vision_tower", "mm_vision_tower", "visual",
    }
)  # fmt: skip


class TextOnly(Family):
    """Any model whose config.json names no media."""

    def load(self) -> None:
        """Nothing is processed."""


def is_text_only(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names no media."""
    return not _MEDIA_KEYS & config.keys()
