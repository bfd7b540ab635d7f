"""Each family on a tiny checkpoint: fields, tokens and rows against its own processor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocol.errors import InvalidRequest
from protocol.items import Batched, Flat, Tensor, decode, encode, metadata_of
from render.checkpoint import open_checkpoint
from render.families import TABLE, create
from render.families.base import Family, Processed
from render.families.text_only import TextOnly
from tests.render import checkpoints
from tests.render.checkpoints import write
from tests.render.family_checkpoints import MAKERS

WIDE = Image.fromarray(np.random.default_rng(3).integers(0, 255, (48, 96, 3), np.uint8))


def loaded(path: Path) -> Family:
    """The family of a checkpoint."""
    family = create(open_checkpoint(path))
    family.load()
    return family


def shape(item: Processed, name: str) -> tuple[int, ...]:
    data = item.fields[name].data
    assert isinstance(data, Tensor)
    return data.shape


def rows(item: Processed) -> int:
    return sum(run.repeat for run in item.runs if run.embeds)


def dtype(item: Processed) -> str:
    data = item.fields["pixel_values"].data
    assert isinstance(data, Tensor)
    return data.dtype


@pytest.mark.parametrize(
    ("model_type", "patch"),
    [("qwen2_vl", 14), ("qwen2_5_vl", 14), ("qwen3_vl", 16), ("qwen3_vl_moe", 16), ("qwen3_5", 16)],
)
def test_qwen(tmp_path: Path, model_type: str, patch: int) -> None:
    family = loaded(checkpoints.qwen_vl(tmp_path, model_type, patch))
    item = family.image(WIDE, {})
    assert shape(item, "pixel_values") == (
        math.prod(np.frombuffer(item.fields["image_grid_thw"].data.data, np.int64)),  # type: ignore[union-attr]
        3 * 2 * patch * patch,
    )
    assert dtype(item) == "uint8"
    assert rows(item) == shape(item, "pixel_values")[0] // 4
    assert set(metadata_of(item.fields)) == {"image_grid_thw"}


@pytest.mark.parametrize("patch", [14, 16])
def test_patches_are_those_of_the_models_own_processor(tmp_path: Path, patch: int) -> None:
    """Bit for bit, over sizes that grow, shrink and stay."""
    family = loaded(checkpoints.qwen_vl(tmp_path, "qwen3_vl", patch))
    rng = np.random.default_rng(patch)
    own = family._own_processor()  # type: ignore[attr-defined]
    for width, height in [(64, 64), (96, 48), (5, 7), (640, 360), (31, 999), (257, 255), (8, 1500)]:
        image = Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8))
        size = {"shortest_edge": 1024, "longest_edge": 9000} if width % 2 else None
        options = {"size": size} if size else {}
        out = own(
            images=image, return_tensors="pt", do_rescale=False, do_normalize=False, **options
        )
        item = family.image(image, options)
        values, grid = item.fields["pixel_values"].data, item.fields["image_grid_thw"].data
        assert isinstance(values, Tensor)
        assert isinstance(grid, Tensor)
        assert values.shape == tuple(out["pixel_values"].shape)
        assert bytes(values.data) == out["pixel_values"].numpy().tobytes()
        assert bytes(grid.data) == out["image_grid_thw"][0].numpy().tobytes()


def test_llava(tmp_path: Path) -> None:
    family = loaded(MAKERS["llava"](tmp_path))
    item = family.image(WIDE, {})
    assert shape(item, "pixel_values") == (3, 28, 28)
    assert (dtype(item), rows(item)) == ("float16", 4)
    assert item.fields["pixel_values"].factory == Batched()
    assert metadata_of(item.fields) == {}


def test_pixtral_breaks_an_image_into_lines(tmp_path: Path) -> None:
    family = loaded(MAKERS["pixtral"](tmp_path))
    item = family.image(WIDE, {})
    assert shape(item, "pixel_values") == (3, 32, 64)
    assert dtype(item) == "bfloat16"
    assert [(run.repeat, run.embeds) for run in item.runs] == [
        (4, True), (1, False), (4, True), (1, False),
    ]  # fmt: skip


def test_mistral3_pixels_are_bytes(tmp_path: Path) -> None:
    family = loaded(MAKERS["mistral3"](tmp_path))
    item = family.image(WIDE, {})
    assert dtype(item) == "uint8"
    assert rows(item) == 2


def test_llava_onevision(tmp_path: Path) -> None:
    family = loaded(MAKERS["llava_onevision"](tmp_path))
    item = family.image(WIDE, {})
    assert shape(item, "pixel_values")[1:] == (3, 28, 28)
    assert shape(item, "image_sizes") == (2,)
    assert set(metadata_of(item.fields)) == {"image_sizes"}
    assert rows(item) > 4


def test_gemma3_frames_an_image(tmp_path: Path) -> None:
    family = loaded(MAKERS["gemma3"](tmp_path))
    item = family.image(WIDE, {})
    assert family.placeholders["image"].text == "<start_of_image>"
    assert shape(item, "pixel_values") == (1, 3, 28, 28)
    assert item.fields["pixel_values"].factory == Flat([[[0, 1, None]]])
    assert rows(item) == 4
    assert not item.runs[0].embeds
    assert not item.runs[-1].embeds
    assert shape(item, "num_patches") == ()
    assert set(metadata_of(item.fields)) == {"num_patches"}


def test_internvl_tiles_an_image(tmp_path: Path) -> None:
    family = loaded(MAKERS["internvl"](tmp_path))
    item = family.image(WIDE, {})
    tiles = shape(item, "pixel_values")[0]
    assert tiles == 3  # two crops and the whole
    assert rows(item) == 4 * tiles
    assert [run.embeds for run in item.runs] == [False, True, False]
    assert shape(item, "image_num_patches") == ()  # a number, as the reference has it
    assert shape(item, "image_token_id") == ()
    assert set(metadata_of(item.fields)) == {"image_num_patches", "image_token_id"}


@pytest.mark.parametrize("name", ["idefics3", "smolvlm"])
def test_idefics3(tmp_path: Path, name: str) -> None:
    family = loaded(MAKERS[name](tmp_path))
    item = family.image(WIDE, {})
    tiles = shape(item, "pixel_values")[0]
    assert tiles > 1
    assert shape(item, "pixel_attention_mask")[0] == tiles
    assert rows(item) == 4 * tiles
    assert any(not run.embeds for run in item.runs)


def test_every_item_survives_the_codec(tmp_path: Path) -> None:
    family = loaded(checkpoints.qwen3_vl(tmp_path))
    item = family.image(WIDE, {})
    again = decode(encode(item.fields))
    for name, field in item.fields.items():
        assert isinstance(field.data, Tensor)
        other = again[name].data
        assert isinstance(other, Tensor)
        assert bytes(other.data) == bytes(field.data.data)
        assert again[name].factory == field.factory


def test_a_text_model_takes_no_media(tmp_path: Path) -> None:
    family = create(open_checkpoint(checkpoints.text_only(tmp_path)))
    assert isinstance(family, TextOnly)
    assert not family.placeholders
    with pytest.raises(ValueError, match="no images"):
        family.image(WIDE, {})


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    checkpoints.text_only(tmp_path)
    write(tmp_path, "config.json", {"model_type": "newest_vl", "vision_config": {}})
    with pytest.raises(InvalidRequest) as caught:
        create(open_checkpoint(tmp_path))
    assert all(name in caught.value.message for name in TABLE)


def test_a_checkpoint_without_its_tokens_is_refused(tmp_path: Path) -> None:
    checkpoints.text_only(tmp_path)
    write(tmp_path, "config.json", {"model_type": "qwen3_vl", "vision_config": {}})
    with pytest.raises(InvalidRequest, match="vision_start_token_id"):
        create(open_checkpoint(tmp_path))
