"""Fingerprints and weights: what counts of a checkpoint, and what a role reads of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from protocol.errors import InvalidRequest
from tests.workers.conftest import StartWorker
from workers.fingerprint import fingerprint, model_digest
from workers.weights import build_on_meta, load_into


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def test_a_copy_elsewhere_is_the_same_model(checkpoint: Path, copy: Path) -> None:
    assert model_digest(str(copy)) == model_digest(str(checkpoint))


def test_other_weights_or_another_configuration_are_another_model(
    checkpoint: Path, copy: Path
) -> None:
    weights = load_file(copy / "model.safetensors")
    name = "model.language_model.embed_tokens.weight"
    save_file(weights | {name: weights[name] + 1}, copy / "model.safetensors")
    assert model_digest(str(copy)) != model_digest(str(checkpoint))
    shutil.copy(checkpoint / "model.safetensors", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vision_start_token_id": 1}))
    assert model_digest(str(copy)) != model_digest(str(checkpoint))


def test_every_tensor_of_a_checkpoint_counts(copy: Path) -> None:
    """Fine-tuning may touch a few tensors of many and leaves config and shapes as they are."""
    weights = load_file(copy / "model.safetensors")
    original = model_digest(str(copy))
    names = [*list(weights)[:3], *list(weights)[-3:]]
    found = {original}
    for name in names:
        save_file(weights | {name: weights[name] * 1.01 + 0.01}, copy / "model.safetensors")
        found.add(model_digest(str(copy)))
    assert len(found) == len(names) + 1


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", b"\0" * 9])
def test_a_file_that_holds_no_weights_is_refused(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"model\.safetensors"):
        model_digest(str(copy))


def test_dtype_revision_and_block_size_are_part_of_the_fingerprint(checkpoint: Path) -> None:
    made = {
        fingerprint(str(checkpoint), revision, dtype, size).digest
        for revision, dtype, size in (
            ("", "float32", 16),
            ("r", "float32", 16),
            ("", "bfloat16", 16),
            ("", "float32", 32),
        )
    }
    assert len(made) == 4


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no config\.json"):
        model_digest(str(tmp_path))


def test_sharded_weights_are_read_by_their_index(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "one.safetensors")
    save_file({"a.bias": torch.zeros(2)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a.weight": "one.safetensors", "a.bias": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    module = build_on_meta(lambda: nn.Linear(2, 2))
    load_into(module, str(tmp_path), ("a.",), torch.bfloat16, torch.device("cpu"))
    state = module.state_dict()
    assert state["weight"].dtype == torch.bfloat16
    assert state["weight"].sum() == 4


def test_missing_or_misshapen_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no safetensors"):
        load_into(nn.Linear(2, 2), str(tmp_path), ("a.",), torch.float32, torch.device("cpu"))
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidRequest, match="lacks weights: bias"):
        load_into(nn.Linear(2, 2), str(tmp_path), ("a.",), torch.float32, torch.device("cpu"))
    module = nn.Linear(3, 2, bias=False)
    with pytest.raises(InvalidRequest, match="does not fit"):
        load_into(module, str(tmp_path), ("a.",), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("role", "language", "vision"),
    [
        ("encode", False, True),
        ("decode", True, False),
        ("prefill", True, True),
        ("prefill_decode", True, True),
        ("all", True, True),
    ],
)
async def test_a_role_has_the_parts_that_it_needs(
    start_worker: StartWorker, role: str, language: bool, vision: bool
) -> None:
    worker = await start_worker(role)
    parts = worker.server.parts
    assert (parts.generator is not None, parts.encoder is not None) == (language, vision)
    assert worker.replica.has_vision == vision
    assert (worker.server.status().kv_total > 0) == language


async def test_a_cache_smaller_than_the_context_is_refused(start_worker: StartWorker) -> None:
    with pytest.raises(InvalidRequest, match="kv_bytes") as caught:
        await start_worker("all", kv_bytes=20000)
    assert caught.value.param == "kv_bytes"


async def test_a_device_that_is_not_there_is_refused(start_worker: StartWorker) -> None:
    with pytest.raises(InvalidRequest, match="device"):
        await start_worker("all", device="cuda:77")
