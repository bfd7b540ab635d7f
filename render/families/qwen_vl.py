"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches as uint8, rows by grid.

The encoder rescales and normalises (wire-protocol §4.6), so patches leave as the resized bytes.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image, new

from protocol.items import Batched, Field, FieldData, Flat
from render.checkpoint import read_json
from render.families.base import Checkpoint, Family, Placeholder, Processed, Run
from render.families.patches import PatchSpec, patches
from render.families.tensors import from_numpy, from_torch, grid

if TYPE_CHECKING:
    from render.video import Frames, VideoInfo

_LONGEST_SIDE = 2**14
"""Patches along a side of an embedding's grid."""


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
        video_id = config.get("video_token_id")
        if isinstance(video_id, int) and "video_preprocessor_config.json" in _files(checkpoint):
            text = start + checkpoint.token_text(video_id) + end
            self.placeholders["video"] = Placeholder(video_id, text)
        options = read_json(Path(checkpoint.path) / "preprocessor_config.json")
        self._spec = PatchSpec.read(options)
        self._merge: int = options.get("merge_size", 2)
        self._processor: Any = None
        self._whole: Any = None

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

    def embeds(self, modality: str, metadata: Mapping[str, Any]) -> Processed:
        if modality != "image":
            raise ValueError(f"this model takes no {modality} embeddings")
        thw = metadata.get("image_grid_thw")
        if not isinstance(thw, list) or len(thw) != 3 or len(metadata) != 1:
            raise ValueError("image_grid_thw must be [t, h, w], and nothing else beside it")
        if not all(type(n) is int and 0 < n <= _LONGEST_SIDE for n in thw):
            raise ValueError("image_grid_thw must hold numbers of patches")
        t, h, w = thw
        if h % self._merge or w % self._merge:
            raise ValueError(f"h and w of image_grid_thw must be multiples of {self._merge}")
        rows = math.prod(thw) // self._merge**2
        fields = {"image_grid_thw": Field(grid((t, h, w)), Batched(keep_on_cpu=True))}
        return Processed(fields, (Run(self._image_id, rows),))

    def choose_frames(self, info: VideoInfo) -> Sequence[int]:
        """The sampling of the model's own video processor."""
        from transformers.video_utils import VideoMetadata

        processor = self._own_whole().video_processor
        known = inspect.signature(processor.sample_frames).parameters
        options = {
            name: value
            for name in known
            if name != "metadata" and (value := getattr(processor, name, None)) is not None
        }
        metadata = VideoMetadata(
            total_num_frames=info.total, fps=info.fps, width=info.width, height=info.height,
            duration=info.duration,
        )  # fmt: skip
        return [int(index) for index in processor.sample_frames(metadata, **options)]

    def video(self, frames: Frames, kwargs: Mapping[str, Any]) -> Processed:
        """Frames through the model's own processor; the model normalises.

        The placeholder becomes what that processor writes: with Qwen3-VL, timestamps and framing
        tokens stand between the steps of time.
        """
        import torch
        from transformers.video_utils import VideoMetadata

        info = frames.info
        metadata = VideoMetadata(
            total_num_frames=info.total, fps=info.fps, width=info.width, height=info.height,
            duration=info.duration, frames_indices=list(frames.indices),
        )  # fmt: skip
        token = self.placeholders["video"].token_id
        out = self._own_whole()(
            text=[self.checkpoint.token_text(token)],
            videos=[torch.from_numpy(frames.pixels).permute(0, 3, 1, 2)],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
            add_special_tokens=False,
            do_rescale=False,
            do_normalize=False,
            **_sized(kwargs),
        )
        pixels = from_torch(out["pixel_values_videos"])
        t, h, w = (int(n) for n in out["video_grid_thw"][0])
        fields = {
            "pixel_values_videos": Field(pixels, Flat([[[0, pixels.shape[0], None]]])),
            "video_grid_thw": Field(grid((t, h, w)), Batched(keep_on_cpu=True)),
        }
        if self.checkpoint.model_type.startswith("qwen3"):
            step = self._own_whole().video_processor.temporal_patch_size
            stamps: list[FieldData] = [*timestamps(frames.indices, info.fps, step)]
            fields["timestamps"] = Field(stamps, Batched(keep_on_cpu=True))
        elif "second_per_grid_ts" in out:
            seconds = torch.tensor(float(out["second_per_grid_ts"][0]), dtype=torch.bfloat16)
            fields["second_per_grid_ts"] = Field(from_torch(seconds), Batched(keep_on_cpu=True))
        ids = out["input_ids"][0].tolist()
        return Processed(
            fields,
            tuple(
                Run(id_, len(list(group)), id_ == token) for id_, group in itertools.groupby(ids)
            ),
        )

    def _own_whole(self) -> Any:
        if self._whole is None:
            from transformers import AutoProcessor

            self._whole = AutoProcessor.from_pretrained(self.checkpoint.path)
        return self._whole

    def _own_processor(self) -> Any:
        if self._processor is None:
            from transformers import AutoImageProcessor

            self._processor = AutoImageProcessor.from_pretrained(self.checkpoint.path)
        return self._processor


def timestamps(indices: Sequence[int], fps: float, step: int) -> list[float]:
    """The time of each temporal patch: the middle of its first and its last frame, in seconds."""
    padded = [*indices, *[indices[-1]] * (-len(indices) % step)]
    times = [index / fps for index in padded]
    return [(times[at] + times[at + step - 1]) / 2 for at in range(0, len(times), step)]


def _files(checkpoint: Checkpoint) -> set[str]:
    return {file.name for file in Path(checkpoint.path).iterdir()}


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
