"""Weights from safetensors by prefix, into modules that were made without memory.

Only the tensors that a role needs are read, one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from protocol.errors import InvalidRequest


def checkpoint_files(model_dir: str) -> list[Path]:
    """The safetensors files of a checkpoint, by its index where it has one.

    Raises:
        InvalidRequest: there is none.
    """
    root = Path(model_dir)
    index = root / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text())["weight_map"].values()
        return [root / name for name in sorted(set(names))]
    files = sorted(root.glob("*.safetensors"))
    if not files:
        raise InvalidRequest(f"{model_dir} holds no safetensors weights", "model")
    return files


def build_on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A module whose parameters take no memory yet.

    Buffers that no checkpoint holds (rotary frequencies) are computed: the modules that own them
    are made again from their configuration.
    """
    with torch.device("meta"):
        module = make()
    for name, child in list(module.named_modules()):
        if name and any(buffer.is_meta for buffer in child.buffers(recurse=False)):
            parent = module.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], type(child)(child.config))
    return module


def load_into(
    module: nn.Module,
    model_dir: str,
    prefixes: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Give a module made by `build_on_meta` its weights, and freeze it.

    Args:
        module: the module.
        model_dir: directory of the checkpoint.
        prefixes: what may stand before the module's own names in the checkpoint; the first that
            occurs counts.
        dtype, device: what the weights become.

    Raises:
        InvalidRequest: weights are missing or do not fit.
    """
    wanted = set(module.state_dict())
    state: dict[str, torch.Tensor] = {}
    for name, read in _tensors(model_dir):
        for prefix in prefixes:
            own = name.removeprefix(prefix)
            if own != name and own in wanted and own not in state:
                state[own] = read().to(device=device, dtype=dtype)
                break
    missing = wanted - state.keys()
    if missing:
        raise InvalidRequest(
            f"{model_dir} lacks weights: {', '.join(sorted(missing)[:3])} ...", "model"
        )
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise InvalidRequest(f"{model_dir} does not fit its configuration: {error}", "model") from (
            None
        )
    module.to(device)
    module.eval()
    module.requires_grad_(requires_grad=False)


def _tensors(model_dir: str) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    for path in checkpoint_files(model_dir):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, lambda name=name: file.get_tensor(name)  # type: ignore[misc]
