"""What the demo model learns from: conversations about drawings, as batches of tensors."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset
from transformers import Qwen3VLProcessor

from examples.demo_model import SYSTEM_PROMPTS, Messages
from examples.drawings import (
    LABELS,
    MAX_SHAPES,
    SINGLE_IMAGE_KINDS,
    WIDTH_PER_SHAPE,
    Drawing,
    Kind,
    draw,
    drawings_for,
    examples,
    question,
    random_labels,
    user_message,
)

IGNORED: Final = -100
"""The label of a token that is not to be learned."""

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One rise and fall of the learning rate.

    For the share `easy` of its steps drawings are small and have few shapes; of the batches that
    follow, the share `several` is about several images: just two simple ones where `pairs`.
    `sides` is how often the longest side is limited to each of `SIDES`. With `guided`, attention
    is taught too (see `demo_guidance`). `kinds` is how often each of `SINGLE_IMAGE_KINDS` is asked
    first, and `crowded` the share of single drawings that have at least three shapes: those are
    what is left to learn at the end.
    """

    easy: float
    several: float
    sides: tuple[float, ...]
    pairs: bool = False
    guided: bool = False
    kinds: tuple[float, ...] = (0.4, 0.3, 0.3)
    crowded: float = 0.0


SIDES: Final = (96, 128, 192, 256)
CYCLES: Final = (
    Cycle(easy=0.25, several=0.4, sides=(0.4, 0.3, 0.15, 0.15)),
    Cycle(easy=0.0, several=0.7, sides=(0.3, 0.3, 0.2, 0.2), pairs=True, guided=True),
    Cycle(
        easy=0.0, several=0.25, sides=(0.2, 0.25, 0.25, 0.3), kinds=(0.5, 0.08, 0.42), crowded=0.7
    ),
)


@dataclass(frozen=True, slots=True)
class Level:
    """What a batch holds: shapes per drawing, longest side, turns, and whether several images.

    `kinds` and `crowded` are those of `Cycle`.
    """

    max_shapes: int
    max_side: int
    length: int
    several: bool
    images: int | None = None
    kinds: tuple[float, ...] = (0.4, 0.3, 0.3)
    crowded: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that end with an answer, the images they refer to and what each shows, in order."""

    messages: Messages
    images: tuple[Image.Image, ...]
    drawings: tuple[Drawing, ...]


def level_at(rng: np.random.Generator, cycle: Cycle, progress: float) -> Level:
    """How hard the next batch is when `progress`, 0 to 1, of `cycle` is done.

    Few shapes in small images teach to see; then come more shapes, several images and all sizes.
    """
    length = int(rng.integers(1, 4))
    if progress < cycle.easy:
        return Level(max_shapes=2, max_side=112, length=length, several=False)
    several = bool(rng.random() < cycle.several)
    if several and cycle.pairs:
        return Level(max_shapes=1, max_side=80, length=length, several=True, images=2)
    max_side = int(rng.choice(SIDES, p=cycle.sides))
    max_shapes = 3 if progress < 1.5 * cycle.easy else 4
    return Level(
        max_shapes=max_shapes,
        max_side=max_side,
        length=length,
        several=several,
        kinds=cycle.kinds,
        crowded=cycle.crowded,
    )


def single_image_conversation(rng: np.random.Generator, level: Level) -> Conversation:
    """Turns about one drawing, or now and then one about nothing but text."""
    if rng.random() < 0.03:
        example = next(examples(rng, "text"))
        return _conversation(rng, [], [(example.prompt, example.answer)])
    kind: Kind = SINGLE_IMAGE_KINDS[int(rng.choice(3, p=level.kinds))]
    if kind != "colour" and rng.random() < level.crowded:
        labels = random_labels(rng, int(rng.integers(3, MAX_SHAPES + 1)))
        side = max(level.max_side, WIDTH_PER_SHAPE * MAX_SHAPES)
        drawings, shape = [draw(rng, labels, max_side=side)], None
    else:
        drawings, shape = drawings_for(
            rng, kind, max_shapes=level.max_shapes, max_side=level.max_side
        )
    turns = [question(rng, kind, drawings, shape=shape)]
    while len(turns) < level.length:
        more: list[Kind] = ["describe", "count"]
        if drawings[0].unique_kinds:
            more.append("colour")
        turns.append(question(rng, more[int(rng.integers(len(more)))], drawings))
    return _conversation(rng, drawings, turns)


def multi_image_conversation(rng: np.random.Generator, level: Level) -> Conversation:
    """One to three times: which of several drawings has a shape that only one of them has."""
    drawings, shape = drawings_for(
        rng, "which", level.images, max_shapes=level.max_shapes, max_side=level.max_side
    )
    turns = [question(rng, "which", drawings, shape=shape)]
    turns += [question(rng, "which", drawings) for _ in range(int(rng.binomial(2, 0.6)))]
    return _conversation(rng, drawings, turns)


class Collator:
    """Turns conversations into the inputs of the model."""

    def __init__(self, processor: Qwen3VLProcessor) -> None:
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._answer = self._tokenizer.encode("<|im_start|>assistant\n")
        self._end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._pad = self._tokenizer.pad_token_id

    def __call__(self, conversations: Sequence[Conversation]) -> Batch:
        """Token ids, masks and labels of shape (batch, length); pixels of shape (patches, 1536)."""
        images = [image for conversation in conversations for image in conversation.images]
        batch: Batch = {}
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


class Batches(IterableDataset[tuple[Level, Batch, torch.Tensor]]):
    """The batches of one cycle, each with what it holds; the same for the same `seed`."""

    def __init__(
        self, processor: Qwen3VLProcessor, cycle: Cycle, *, steps: int, size: int, seed: list[int]
    ) -> None:
        self._processor, self._cycle = processor, cycle
        self._steps, self._size, self._seed = steps, size, seed

    def __iter__(self) -> Iterator[tuple[Level, Batch, torch.Tensor]]:
        """Draw and tokenize one batch per step; fewer conversations about several images.

        The tensor is (images, labels), 1 where an image shows a label.
        """
        rng = np.random.default_rng(self._seed)
        collate = Collator(self._processor)
        for step in range(self._steps):
            level = level_at(rng, self._cycle, step / self._steps)
            make = multi_image_conversation if level.several else single_image_conversation
            count = max(1, self._size * 5 // 8) if level.several else self._size
            conversations = [make(rng, level) for _ in range(count)]
            shown = [_shown(drawing) for chat in conversations for drawing in chat.drawings]
            labels = torch.stack(shown) if shown else torch.zeros(0, len(LABELS))
            yield level, collate(conversations), labels


def as_sent(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The image as a client may send it: now and then through JPEG."""
    if rng.random() > 0.15:
        return image
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(rng.integers(75, 96)))
    return Image.open(file).convert("RGB")


def _conversation(
    rng: np.random.Generator, drawings: Sequence[Drawing], turns: Sequence[tuple[str, str]]
) -> Conversation:
    """A chat of `turns`; images before or after the first text, a system prompt or none."""
    images = tuple(as_sent(rng, drawing.image) for drawing in drawings)
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
    return Conversation(messages, images, tuple(drawings))


def _shown(drawing: Drawing) -> torch.Tensor:
    """1 for each label that the drawing shows, of shape (labels,)."""
    shown = torch.zeros(len(LABELS))
    for shape in drawing.shapes:
        shown[LABELS.index((shape.colour, shape.kind))] = 1
    return shown


def _padded(rows: Sequence[torch.Tensor], value: int) -> torch.Tensor:
    """Rows of unequal length as one (rows, longest) tensor, filled on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
