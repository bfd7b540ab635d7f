"""Train the demo model that describes drawings.

    python -m examples.train_demo_model               # train, evaluate, write the checkpoint
    python -m examples.train_demo_model --evaluate    # only measure what is there

First the vision tower alone learns to say which shape is in each image token. Then all of the model
learns to answer, in three cycles of the learning rate: a step is a batch of conversations about
one image or none, or about several. The second cycle teaches to find the right image of two, with
extra losses (`demo_guidance`). A process of its own draws the next batches meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)

from examples.demo_batches import CYCLES, IGNORED, Batches, as_sent
from examples.demo_guidance import Guidance
from examples.demo_model import CHECKPOINT, build_model, build_processor, evaluate, save
from examples.drawings import LABELS, Drawing, draw

CELL_LABELS: Final = {label: number for number, label in enumerate(LABELS, start=1)}
"""What an image token can show; 0 is nothing."""


def teach_vision(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, args: argparse.Namespace
) -> None:
    """Teach the vision tower alone to name the shape that each of its tokens shows."""
    rng = np.random.default_rng([args.seed, 1])
    visual = model.model.visual
    head = torch.nn.Linear(visual.config.out_hidden_size, len(CELL_LABELS) + 1)
    parameters = [*visual.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=args.vision_steps + 1, pct_start=0.1, cycle_momentum=False
    )
    began, right, shown = time.monotonic(), 0, 0
    for step in range(1, args.vision_steps + 1):
        max_side = int(rng.choice((128, 128, 192, 256)))
        drawings = [draw(rng, max_side=max_side) for _ in range(args.batch)]
        images = [as_sent(rng, drawing.image) for drawing in drawings]
        batch = processor.image_processor(images, return_tensors="pt")
        grids = [(int(h) // 2, int(w) // 2) for _, h, w in batch["image_grid_thw"]]
        labels = torch.from_numpy(np.concatenate(list(map(_cell_labels, drawings, grids))))
        logits = head(visual(batch["pixel_values"], batch["image_grid_thw"]).pooler_output)
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        torch.autograd.backward(loss)
        _update(parameters, optimizer, schedule)
        right += int((logits.argmax(-1) == labels)[labels > 0].sum())
        shown += int((labels > 0).sum())
        if step % args.report == 0:
            seconds = time.monotonic() - began
            print(
                f"vision, step {step} of {args.vision_steps}, {seconds:.0f} s, "
                f"shapes named {right / shown:.2%}",
                flush=True,
            )
            right = shown = 0


def train(
    model: Qwen3VLForConditionalGeneration,
    processor: Qwen3VLProcessor,
    args: argparse.Namespace,
    number: int,
) -> None:
    """Teach the whole model in cycle `number`; writes `args.output` with every report."""
    steps, peak = args.steps[number], args.learning_rate[number]
    data = Batches(
        processor, CYCLES[number], steps=steps, size=args.batch, seed=[args.seed, 2, number]
    )
    batches = DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=4)
    model.set_attn_implementation({"text_config": "eager" if CYCLES[number].guided else "sdpa"})
    guidance = Guidance(processor, model.config.text_config.hidden_size)
    parameters = [*model.parameters(), *guidance.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=peak, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak, total_steps=steps + 1, pct_start=0.04, cycle_momentum=False
    )
    model.train()
    began = time.monotonic()
    losses: tuple[list[float], list[float]] = ([], [])
    for step, (level, batch, shown) in enumerate(batches, 1):
        outputs = model(
            **batch,
            use_cache=False,
            output_hidden_states=True,
            output_attentions=CYCLES[number].guided,
        )
        loss = outputs.loss
        (loss + guidance(batch, outputs, shown)).backward()
        _update(parameters, optimizer, schedule)
        losses[level.several].append(loss.item())
        if step % args.report == 0 or step == steps:
            seconds = time.monotonic() - began
            means = " and ".join(f"{sum(some) / max(1, len(some)):.4f}" for some in losses)
            print(
                f"cycle {number + 1}, step {step} of {steps}, {seconds:.0f} s, "
                f"loss {means} (several images)",
                flush=True,
            )
            losses = ([], [])
            save(model, processor, args.output)


def main() -> None:
    """Read the command line, then train and evaluate, or only evaluate."""
    parser = argparse.ArgumentParser(description="Train or evaluate the demo model.")
    parser.add_argument(
        "--output", type=Path, default=CHECKPOINT, help="directory of the checkpoint"
    )
    parser.add_argument(
        "--evaluate", action="store_true", help="do not train, only measure --output"
    )
    parser.add_argument(
        "--examples", type=int, default=200, help="examples per kind to evaluate on"
    )
    parser.add_argument(
        "--vision-steps", type=int, default=800, help="steps for the vision tower alone"
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs=len(CYCLES),
        default=(1600, 400, 1500),
        metavar="N",
        help="steps for the whole model, per cycle",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=32,
        help="conversations per step, fewer if about several images",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        nargs=len(CYCLES),
        default=(1.5e-3, 1.6e-3, 1.1e-3),
        metavar="RATE",
        help="peak for the whole model, per cycle",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and drawings")
    parser.add_argument(
        "--resume", type=Path, help="checkpoint to improve on, by the last cycle alone"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads, beside the loader's")
    parser.add_argument("--report", type=int, default=50, help="steps between progress lines")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.evaluate:
        model = AutoModelForImageTextToText.from_pretrained(args.output)
        evaluate(model, AutoProcessor.from_pretrained(args.output), args.examples)
        return
    if args.resume:
        processor = AutoProcessor.from_pretrained(args.resume)
        model = AutoModelForImageTextToText.from_pretrained(args.resume)
    else:
        processor = build_processor()
        model = build_model(processor.tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    model.model.visual.patch_embed.forward = _linear_patches(model.model.visual.patch_embed)
    cycles = range(len(CYCLES))
    if args.resume:
        cycles = cycles[-1:]
    else:
        teach_vision(model, processor, args)
    for number in cycles:
        train(model, processor, args, number)
    evaluate(model, processor, args.examples)


def _update(
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """Take a step along the clipped gradients, and clear them."""
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)


def _cell_labels(drawing: Drawing, grid: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Per image token of a (rows, columns) grid, the shape that covers most of it, flattened.

    Tokens that show less than half of what the shape's best token shows are ignored.
    """
    width, height = drawing.image.size
    rows, columns = np.linspace(0, height, grid[0] + 1), np.linspace(0, width, grid[1] + 1)
    most, labels = np.zeros(grid), np.zeros(grid, dtype=np.int64)
    for shape in drawing.shapes:
        inside = [
            np.clip(
                np.minimum(edges[1:], centre + shape.radius)
                - np.maximum(edges[:-1], centre - shape.radius),
                0,
                None,
            )
            for edges, centre in ((rows, shape.y), (columns, shape.x))
        ]
        area = np.outer(*inside)
        label = np.where(area >= area.max() / 2, CELL_LABELS[shape.colour, shape.kind], IGNORED)
        labels = np.where(area > most, label, labels)
        most = np.maximum(most, area)
    return labels.ravel()


def _linear_patches(patch_embed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The patch embedding as a matrix product: the same numbers, faster to learn from."""

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        weight = patch_embed.proj.weight
        return torch.nn.functional.linear(pixels, weight.flatten(1), patch_embed.proj.bias)

    return forward


if __name__ == "__main__":
    main()
