"""Train the demo model that describes drawings.

    python -m examples.train_demo_model               # train, evaluate, write the checkpoint
    python -m examples.train_demo_model --evaluate    # only measure what is there
    torchrun --nproc-per-node 2 -m examples.train_demo_model --threads 1    # on shared cores

First the vision tower alone learns to say which shape is in each image token. Then all of the model
learns to answer: a step is a batch of conversations about one image or none, or about several.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)

from examples.demo_model import (
    CHECKPOINT,
    SYSTEM_PROMPTS,
    Messages,
    build_model,
    build_processor,
    evaluate,
    save,
)
from examples.drawings import (
    COLOURS,
    SHAPES,
    SINGLE_IMAGE_KINDS,
    Drawing,
    Kind,
    draw,
    drawings_for,
    examples,
    kinds_in_one_image,
    question,
    user_message,
)

IGNORED: Final = -100
CELL_LABELS: Final = {
    label: number for number, label in enumerate([(c, k) for c in COLOURS for k in SHAPES], start=1)
}
"""What an image token can show; 0 is nothing."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a batch holds: shapes per drawing, longest side, turns, and whether several images."""

    max_shapes: int
    max_side: int
    length: int
    several: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that end with an answer, and the images they refer to, in order."""

    messages: Messages
    images: tuple[Image.Image, ...]


def level_at(rng: np.random.Generator, progress: float) -> Level:
    """How hard the next batch is when `progress`, 0 to 1, of the training is done.

    Few shapes in small images teach to see; then come more shapes, several images and all sizes.
    """
    if progress < 0.1:
        return Level(max_shapes=2, max_side=128, length=1, several=False)
    several = bool(rng.random() < 0.5)
    if progress < 0.25:
        return Level(max_shapes=3, max_side=128, length=1, several=several)
    max_side = int(rng.choice((96, 128, 192, 256), p=(0.3, 0.3, 0.2, 0.2)))
    length = int(rng.choice((1, 2, 3), p=(0.7, 0.2, 0.1)))
    return Level(max_shapes=4, max_side=max_side, length=length, several=several)


def single_image_conversation(rng: np.random.Generator, level: Level) -> Conversation:
    """Turns about one drawing, or now and then one about nothing but text."""
    if rng.random() < 0.05:
        example = next(examples(rng, "text"))
        return _conversation(rng, [], [(example.prompt, example.answer)])
    kind: Kind = SINGLE_IMAGE_KINDS[int(rng.choice(3, p=(0.7, 0.15, 0.15)))]
    drawings, shape = drawings_for(rng, kind, max_shapes=level.max_shapes, max_side=level.max_side)
    turns = [question(rng, kind, drawings, shape=shape)]
    while len(turns) < level.length:
        more: list[Kind] = ["describe", "count"]
        if drawings[0].unique_kinds:
            more.append("colour")
        turns.append(question(rng, more[int(rng.integers(len(more)))], drawings))
    return _conversation(rng, drawings, turns)


def multi_image_conversation(rng: np.random.Generator, level: Level) -> Conversation:
    """Turns about several drawings, or one drawing in each of two turns."""
    if rng.random() < 0.15:
        first, second = (single_image_conversation(rng, level) for _ in range(2))
        later = [message for message in second.messages if message["role"] != "system"]
        return Conversation(first.messages + later, first.images + second.images)
    kind: Kind = "which" if rng.random() < 0.5 else "describe_each"
    drawings, shape = drawings_for(rng, kind, max_shapes=level.max_shapes, max_side=level.max_side)
    turns = [question(rng, kind, drawings, shape=shape)]
    if level.length > 1 and kinds_in_one_image(drawings):
        turns.append(question(rng, "which", drawings))
    return _conversation(rng, drawings, turns)


class Collator:
    """Turns conversations into the inputs of the model."""

    def __init__(self, processor: Qwen3VLProcessor) -> None:
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._answer = self._tokenizer.encode("<|im_start|>assistant\n")
        self._end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._pad = self._tokenizer.pad_token_id

    def __call__(self, conversations: Sequence[Conversation]) -> dict[str, torch.Tensor]:
        """Token ids, masks and labels of shape (batch, length); pixels of shape (patches, 1536)."""
        images = [image for conversation in conversations for image in conversation.images]
        batch: dict[str, torch.Tensor] = {}
        counts: Iterator[int] = iter(())
        if images:
            batch = dict(self._processor.image_processor(images, return_tensors="pt"))
            counts = iter((batch["image_grid_thw"].prod(-1) // 4).tolist())
        texts = [self._text(conversation.messages, counts) for conversation in conversations]
        rows = [torch.tensor(ids) for ids in self._tokenizer(texts)["input_ids"]]
        batch["input_ids"] = _padded(rows, self._pad)
        batch["attention_mask"] = _padded([torch.ones_like(row) for row in rows], 0)
        batch["labels"] = _padded([self._labels(row) for row in rows], IGNORED)
        is_image = batch["input_ids"] == self._processor.image_token_id
        batch["mm_token_type_ids"] = is_image.int()
        return batch

    def _text(self, messages: Messages, counts: Iterator[int]) -> str:
        """The chat as text, with one placeholder per image token."""
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False)
        head, *rest = text.split("<|image_pad|>")
        return head + "".join("<|image_pad|>" * next(counts) + part for part in rest)

    def _labels(self, row: torch.Tensor) -> torch.Tensor:
        """`row` with everything ignored but the answers and the end of each."""
        labels, ids, width = torch.full_like(row, IGNORED), row.tolist(), len(self._answer)
        for start in range(len(ids)):
            if ids[start : start + width] == self._answer:
                begin, end = start + width, ids.index(self._end, start + width) + 1
                labels[begin:end] = row[begin:end]
        return labels


def teach_vision(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, args: argparse.Namespace
) -> None:
    """Teach the vision tower alone to name the shape that each of its tokens shows."""
    rng = np.random.default_rng([args.seed, 1, _rank()])
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
        images = [_sent(rng, drawing.image) for drawing in drawings]
        batch = processor.image_processor(images, return_tensors="pt")
        grids = [(int(h) // 2, int(w) // 2) for _, h, w in batch["image_grid_thw"]]
        labels = torch.from_numpy(np.concatenate(list(map(_cell_labels, drawings, grids))))
        logits = head(visual(batch["pixel_values"], batch["image_grid_thw"]).pooler_output)
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        torch.autograd.backward(loss)
        _update(parameters, optimizer, schedule)
        right += int((logits.argmax(-1) == labels)[labels > 0].sum())
        shown += int((labels > 0).sum())
        if step % args.report == 0 and _rank() == 0:
            seconds = time.monotonic() - began
            print(
                f"vision, step {step} of {args.vision_steps}, {seconds:.0f} s, "
                f"shapes named {right / shown:.2%}",
                flush=True,
            )
            right = shown = 0


def train(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, args: argparse.Namespace
) -> None:
    """Teach the whole model to answer; writes `args.output` with every report."""
    levels = np.random.default_rng([args.seed, 2])  # the same in every process
    rng = np.random.default_rng([args.seed, 3, _rank()])
    collate = Collator(processor)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        args.learning_rate,
        total_steps=args.steps + 1,
        pct_start=0.04,
        cycle_momentum=False,
    )
    model.train()
    began = time.monotonic()
    losses: tuple[list[float], list[float]] = ([], [])
    for step in range(1, args.steps + 1):
        level = level_at(levels, 1.0 if args.resume else step / args.steps)
        make = multi_image_conversation if level.several else single_image_conversation
        count = args.batch // 2 if level.several else args.batch
        loss = model(**collate([make(rng, level) for _ in range(count)]), use_cache=False).loss
        loss.backward()
        _update(list(model.parameters()), optimizer, schedule)
        losses[level.several].append(loss.item())
        if (step % args.report == 0 or step == args.steps) and _rank() == 0:
            seconds = time.monotonic() - began
            means = " ".join(f"{sum(some) / max(1, len(some)):.4f}" for some in losses)
            print(f"step {step} of {args.steps}, {seconds:.0f} s, loss {means}", flush=True)
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
    parser.add_argument("--steps", type=int, default=2000, help="steps for the whole model")
    parser.add_argument(
        "--batch",
        type=int,
        default=32,
        help="conversations per step and process, half as many if about several images",
    )
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="peak, whole model")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and drawings")
    parser.add_argument("--resume", type=Path, help="directory of weights to improve on")
    parser.add_argument("--threads", type=int, default=2, help="threads per process")
    parser.add_argument("--report", type=int, default=50, help="steps between progress lines")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.evaluate:
        model = AutoModelForImageTextToText.from_pretrained(args.output)
        evaluate(model, AutoProcessor.from_pretrained(args.output), args.examples)
        return
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    if args.resume:
        processor = AutoProcessor.from_pretrained(args.resume)
        model = AutoModelForImageTextToText.from_pretrained(args.resume)
    else:
        processor = build_processor()
        model = build_model(processor.tokenizer)
    if _rank() == 0:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    model.model.visual.patch_embed.forward = _linear_patches(model.model.visual.patch_embed)
    if not args.resume:
        teach_vision(model, processor, args)
    train(model, processor, args)
    if _rank() == 0:
        evaluate(model, processor, args.examples)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _rank() -> int:
    """The number of this process among those that train together."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _update(
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """Take a step along the clipped gradients, averaged over all processes, and clear them."""
    if torch.distributed.is_initialized():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)


def _conversation(
    rng: np.random.Generator, drawings: Sequence[Drawing], turns: Sequence[tuple[str, str]]
) -> Conversation:
    """A chat of `turns`; images before or after the first text, a system prompt or none."""
    images = tuple(_sent(rng, drawing.image) for drawing in drawings)
    messages: Messages = []
    if rng.random() < 0.3:
        system = SYSTEM_PROMPTS[int(rng.integers(len(SYSTEM_PROMPTS)))]
        messages.append({"role": "system", "content": system})
    if rng.random() < 0.08:
        greeting = next(examples(rng, "text"))
        messages.append(user_message(greeting.prompt))
        messages.append({"role": "assistant", "content": greeting.answer})
    text_first = rng.random() < 0.3
    for index, (prompt, answer) in enumerate(turns):
        messages.append(user_message(prompt, () if index else images, text_first=text_first))
        messages.append({"role": "assistant", "content": answer})
    return Conversation(messages, images)


def _sent(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The image as a client may send it: now and then through JPEG."""
    if rng.random() > 0.15:
        return image
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(rng.integers(75, 96)))
    return Image.open(file).convert("RGB")


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


def _padded(rows: Sequence[torch.Tensor], value: int) -> torch.Tensor:
    """Rows of unequal length as one (rows, longest) tensor, filled on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


if __name__ == "__main__":
    main()
