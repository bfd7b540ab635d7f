"""The engine against transformers' own model on the same inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from protocol.deadline import Deadline
from protocol.rpc import GENERATE
from serving.rpc_client import RpcChannel
from tests.workers.conftest import StartWorker
from tests.workers.prompts import IMAGE_PAD, Picture, picture, request, text


def reference(
    model_dir: Path, parts: list[list[int] | Picture], count: int
) -> tuple[list[int], list[float]]:
    """Greedy tokens and their logprobs, by transformers, one full forward pass per token."""
    model = AutoModelForImageTextToText.from_pretrained(model_dir, attn_implementation="eager")
    asked = request(*parts)
    pictures = [part for part in parts if isinstance(part, Picture)]
    tokens = list(asked.token_ids)
    media: dict[str, torch.Tensor] = {}
    if pictures:
        pixels = np.concatenate([p.pixels for p in pictures]).astype(np.float32)
        media["pixel_values"] = torch.from_numpy(pixels / 255 * 2 - 1)
        media["image_grid_thw"] = torch.tensor([p.grid for p in pictures])
    logprobs = []
    for _ in range(count):
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            output = model(
                input_ids=ids, mm_token_type_ids=(ids == IMAGE_PAD).int(), use_cache=False, **media
            )
        row = output.logits[0, -1].log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
        model.model.rope_deltas = None
    return tokens[len(asked.token_ids) :], logprobs


@pytest.mark.parametrize(
    "parts",
    [
        [text(1, 9)],
        [text(2, 5), picture(1), text(3, 6)],
        [picture(2, 8, 4), text(4, 7), picture(3, 2, 6), text(5, 3)],
    ],
    ids=["text", "one picture", "two pictures"],
)
async def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    checkpoint: Path, start_worker: StartWorker, parts: list[list[int] | Picture]
) -> None:
    """Positions, deepstack features, normalisation and the paged cache all agree."""
    channel: RpcChannel = (await start_worker("all")).channel
    asked = request(*parts, max_tokens=6, logprobs=0, ignore_eos=True)
    tokens: list[int] = []
    logprobs: list[float] = []
    async for delta in channel.stream(GENERATE, asked, Deadline.after(20)):
        tokens += delta.token_ids
        logprobs += [entry.logprob for entry in delta.logprobs.content] if delta.logprobs else []
    expected_tokens, expected_logprobs = reference(checkpoint, parts, 6)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
