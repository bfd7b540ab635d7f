"""Model families: positions, grids and embeddings are those of transformers."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from protocol.deadline import Deadline
from protocol.errors import InvalidRequest
from protocol.features import PlaceholderRange
from protocol.items import Batched, Field, Tensor
from protocol.rpc import GENERATE
from tests.workers.conftest import StartWorker
from tests.workers.prompts import IMAGE_PAD, picture, request, text
from tests.workers.test_reference import reference
from workers.adapters import create_adapter
from workers.adapters.base import ItemLayout

VIDEO_PAD = IMAGE_PAD + 1


@pytest.fixture(scope="module")
def qwen2_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen2.5-VL, untied, with window attention in its tower."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("qwen25")
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 320,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            },
            "eos_token_id": 2,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        image_token_id=IMAGE_PAD,
        video_token_id=VIDEO_PAD,
        tie_word_embeddings=False,
    )
    Qwen2_5_VLForConditionalGeneration(config).eval().save_pretrained(path)
    (path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255})
    )
    return path


async def test_qwen2_5_vl_answers_as_transformers_does(
    qwen2_5: Path, start_worker: StartWorker
) -> None:
    worker = await start_worker("all", model=str(qwen2_5))
    parts = [text(1, 5), picture(1, 8, 12), text(2, 4), picture(2, 4, 4), text(3, 2)]
    asked = request(*parts, max_tokens=5, logprobs=0, ignore_eos=True)
    deltas = [d async for d in worker.channel.stream(GENERATE, asked, Deadline.after(20))]
    tokens = list(chain.from_iterable(delta.token_ids for delta in deltas))
    logprobs = [e.logprob for d in deltas for e in (d.logprobs.content if d.logprobs else [])]
    expected_tokens, expected_logprobs = reference(qwen2_5, parts, 5)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)


def positions_of_transformers(
    model_dir: Path, tokens: list[int], **grids: torch.Tensor
) -> tuple[np.ndarray[Any, Any], int]:
    model = AutoModelForImageTextToText.from_pretrained(model_dir)
    ids = torch.tensor([tokens])
    kinds = (ids == IMAGE_PAD).int() + 2 * (ids == VIDEO_PAD).int()
    positions, delta = model.model.get_rope_index(ids, mm_token_type_ids=kinds, **grids)
    return positions[:, 0].numpy(), int(delta[0, 0])


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_positions_of_prompts_with_images(family: str, checkpoint: Path, qwen2_5: Path) -> None:
    model_dir = checkpoint if family == "qwen3_vl" else qwen2_5
    grids = [(1, 4, 8), (1, 6, 2)]
    tokens = [5, 6] + [IMAGE_PAD] * 8 + [7] + [IMAGE_PAD] * 3 + [8, 9, 9]
    items = [
        (PlaceholderRange(2, 8), ItemLayout("image", grids[0], 8)),
        (PlaceholderRange(11, 3), ItemLayout("image", grids[1], 3)),
    ]
    ours, delta = create_adapter(str(model_dir)).positions(len(tokens), items)
    theirs, their_delta = positions_of_transformers(
        model_dir, tokens, image_grid_thw=torch.tensor(grids)
    )
    assert ours.tolist() == theirs.tolist()
    assert delta == their_delta


def test_positions_of_a_qwen3_video_whose_steps_stand_apart(checkpoint: Path) -> None:
    tokens = [5] + [VIDEO_PAD] * 4 + [6, 7] + [VIDEO_PAD] * 4 + [8]
    item = PlaceholderRange(1, 10, is_embed=((0, 4), (6, 4)))
    ours, delta = create_adapter(str(checkpoint)).positions(
        len(tokens), [(item, ItemLayout("video", (2, 4, 4), 8))]
    )
    theirs, their_delta = positions_of_transformers(
        checkpoint, tokens, video_grid_thw=torch.tensor([[2, 4, 4]])
    )
    assert ours.tolist() == theirs.tolist()
    assert delta == their_delta


def test_positions_of_a_qwen2_5_video_run_in_seconds(qwen2_5: Path) -> None:
    tokens = [5] + [VIDEO_PAD] * 12 + [8, 9]
    layout = ItemLayout("video", (3, 4, 4), 12, seconds_per_grid=1.5)
    ours, delta = create_adapter(str(qwen2_5)).positions(
        len(tokens), [(PlaceholderRange(1, 12), layout)]
    )
    theirs, their_delta = positions_of_transformers(
        qwen2_5,
        tokens,
        video_grid_thw=torch.tensor([[3, 4, 4]]),
        second_per_grid_ts=torch.tensor([1.5]),
    )
    assert ours.tolist() == theirs.tolist()
    assert delta == their_delta


def test_a_run_that_holds_no_whole_step_is_refused(checkpoint: Path) -> None:
    with pytest.raises(InvalidRequest, match="whole grid steps"):
        create_adapter(str(checkpoint)).positions(
            9, [(PlaceholderRange(1, 7), ItemLayout("image", (1, 4, 4), 7))]
        )


def grid(*values: int, dtype: str = "int64") -> dict[str, Field]:
    data = np.array(values, dtype=dtype).tobytes()
    return {"image_grid_thw": Field(Tensor(dtype, (len(values),), memoryview(data)), Batched())}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs image_grid_thw"),
        (grid(1, 4), "shape"),
        (grid(1, 4, 4, dtype="int32"), "int64"),
        (grid(1, 0, 4), "impossible"),
        (grid(1, 3, 4), "impossible"),
        (grid(1, -4, -4), "impossible"),
        (grid(1, 2**40, 4), "impossible"),
        ({"image_grid_thw": Field(3)}, "needs image_grid_thw"),
    ],
)
def test_impossible_grids_are_refused(
    checkpoint: Path, fields: dict[str, Field], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        create_adapter(str(checkpoint)).layout("image", fields, "here")


def test_only_the_weights_of_the_role_are_loaded(checkpoint: Path) -> None:
    adapter = create_adapter(str(checkpoint))
    shape = adapter.shape
    assert (shape.hidden, shape.deepstack, shape.embedding_width) == (32, 1, 64)
    assert shape.eos == {2}
    decoder = adapter.load_language(str(checkpoint), torch.float32, torch.device("cpu"))
    assert not any("visual" in name for name in vars(decoder))


def test_a_family_that_is_not_supported_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InvalidRequest, match="'bert' is not supported; supported: qwen2_5_vl"):
        create_adapter(str(tmp_path))
    with pytest.raises(InvalidRequest, match=r"no config\.json"):
        create_adapter(str(tmp_path / "nowhere"))
