"""Drawings of coloured shapes, with questions about them and the answers the demo model gives.

A drawing is a white image, 64 to 256 px on a side, with one to four shapes that do not overlap and
differ in colour or kind. Everything follows from the generator passed in: the same seed makes the
same pixels and texts.

    rng = np.random.default_rng(7)
    for images, prompt, answer in itertools.islice(examples(rng, "describe"), 30):
        ...

**Ordering rule.** A caption names the shapes by colour, in the order of `COLOURS`, and those of one
colour by kind, in the order of `SHAPES`. Where they are in the image does not matter.

| kind       | images | answer                                           |
|------------|--------|--------------------------------------------------|
| `describe` | 1      | `a red circle, a blue square and a black circle` |
| `colour`   | 1      | `red`; the shape asked for occurs once           |
| `count`    | 1      | `one`, `two`, `three` or `four`                  |
| `which`    | 2 to 4 | `image 2`; exactly one image has the shape       |
| `text`     | 0      | a fixed reply                                    |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from PIL import Image, ImageDraw

Kind = Literal["describe", "colour", "count", "which", "text"]
Label = tuple[str, str]
"""Colour and kind of a shape, for example `("red", "circle")`."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SINGLE_IMAGE_KINDS: Final[tuple[Kind, ...]] = ("describe", "colour", "count")
MULTI_IMAGE_KINDS: Final[tuple[Kind, ...]] = ("which",)

COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "purple": (140, 50, 170),
    "black": (25, 25, 25),
}
SHAPES: Final = ("circle", "square", "triangle")
LABELS: Final[tuple[Label, ...]] = tuple((colour, kind) for colour in COLOURS for kind in SHAPES)
"""Everything that can be drawn, in the order that captions follow."""
NUMBERS: Final = ("zero", "one", "two", "three", "four")
MAX_SHAPES: Final = 4
MIN_SIDE: Final = 64
MAX_SIDE: Final = 256
WIDTH_PER_SHAPE: Final = 24
"""Pixels of width that each shape needs at least, so narrow images hold fewer shapes."""

PROMPTS: Final[dict[Kind, tuple[str, ...]]] = {
    "describe": (
        "Describe this image.",
        "Describe the image.",
        "What is in this image?",
        "What do you see?",
        "What's in the picture?",
        "Describe this drawing.",
        "Describe the picture.",
        "What does the image show?",
    ),
    "colour": (
        "What colour is the {shape}?",
        "What color is the {shape}?",
        "Which colour is the {shape}?",
        "Which color does the {shape} have?",
        "What is the colour of the {shape}?",
        "What is the color of the {shape}?",
        "Name the colour of the {shape}.",
    ),
    "count": (
        "How many shapes are there?",
        "How many shapes are in the image?",
        "How many shapes do you see?",
        "How many shapes are in this image?",
        "How many objects are there?",
        "Count the shapes.",
        "Count the shapes in this image.",
    ),
    "which": (
        "Which image has the {shape}?",
        "Which image has a {shape}?",
        "Which image contains the {shape}?",
        "Which picture has the {shape}?",
        "In which image is the {shape}?",
        "Where is the {shape}?",
        "Which of these images shows a {shape}?",
    ),
}

REPLIES: Final[dict[str, str]] = {
    "Hello!": "Hello! Show me a drawing.",
    "Hello": "Hello! Show me a drawing.",
    "Hi!": "Hello! Show me a drawing.",
    "Hi": "Hello! Show me a drawing.",
    "What can you do?": "I describe drawings of coloured shapes.",
    "Who are you?": "I describe drawings of coloured shapes.",
    "Which colours do you know?": "red, green, blue, yellow, purple and black",
    "Which colors do you know?": "red, green, blue, yellow, purple and black",
    "What colours do you know?": "red, green, blue, yellow, purple and black",
    "What colors do you know?": "red, green, blue, yellow, purple and black",
    "Which shapes do you know?": "circle, square and triangle",
    "What shapes do you know?": "circle, square and triangle",
    "Count to ten.": " ".join(str(number) for number in range(1, 11)),
    "Count to fifty.": " ".join(str(number) for number in range(1, 51)),
    "Thank you!": "You are welcome.",
    "Thanks!": "You are welcome.",
}
"""Prompts without an image, and the reply to each. `Count to fifty.` is the long one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape: `x`, `y` is its centre and `radius` half its extent, all in pixels."""

    colour: str
    kind: str
    x: int
    y: int
    radius: int

    @property
    def name(self) -> str:
        """The shape as captions write it, for example `red circle`."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """An RGB image and its shapes, in the order they were asked for."""

    image: Image.Image
    shapes: tuple[Shape, ...]

    @property
    def caption(self) -> str:
        """`a red circle, a blue square and a black circle`, by colour, then by kind."""
        ordered = sorted(self.shapes, key=lambda shape: LABELS.index((shape.colour, shape.kind)))
        names = [f"a {shape.name}" for shape in ordered]
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

    @property
    def unique_kinds(self) -> tuple[str, ...]:
        """The kinds of shape that occur exactly once."""
        kinds = [shape.kind for shape in self.shapes]
        return tuple(kind for kind in SHAPES if kinds.count(kind) == 1)


class Example(NamedTuple):
    """Images to send, the text to send with them, and the answer a model should give."""

    images: tuple[Image.Image, ...]
    prompt: str
    answer: str


def draw(
    rng: np.random.Generator,
    labels: Sequence[Label] | None = None,
    *,
    size: tuple[int, int] | None = None,
    max_side: int = MAX_SIDE,
) -> Drawing:
    """Draw `labels` (one to four at random when not given) at random places.

    `size` is (width, height), when not given random up to `max_side`; `ValueError` when the labels
    do not fit.
    """
    if labels is None:
        labels = random_labels(rng)
    if not 1 <= len(labels) <= MAX_SHAPES:
        msg = f"a drawing has 1 to {MAX_SHAPES} shapes, not {len(labels)}"
        raise ValueError(msg)
    if size is None:
        narrowest = max(MIN_SIDE, WIDTH_PER_SHAPE * len(labels))
        size = int(rng.integers(narrowest, max_side + 1)), int(rng.integers(MIN_SIDE, max_side + 1))
    elif size[0] < WIDTH_PER_SHAPE * len(labels) or size[1] < MIN_SIDE:
        msg = f"{len(labels)} shapes do not fit into {size[0]}x{size[1]} px"
        raise ValueError(msg)
    shapes = _place(rng, labels, *size)
    return Drawing(_paint(rng, shapes, size), tuple(shapes))


def random_labels(
    rng: np.random.Generator,
    count: int | None = None,
    *,
    unique: str | None = None,
    without: str | None = None,
) -> list[Label]:
    """Colour and kind for `count` shapes (1 to 4 when not given), no two alike.

    `unique` names a kind that occurs exactly once, `without` one that does not occur.
    """
    if count is None:
        count = int(rng.integers(1, MAX_SHAPES + 1))
    others = [label for label in LABELS if label[1] not in (unique, without)]
    colours = list(COLOURS)
    labels = [] if unique is None else [(colours[rng.integers(len(colours))], unique)]
    chosen = rng.permutation(len(others))[: count - len(labels)]
    return labels + [others[index] for index in chosen]


def question(
    rng: np.random.Generator,
    kind: Kind,
    drawings: Sequence[Drawing],
    *,
    wording: int | None = None,
    shape: str | None = None,
) -> tuple[str, str]:
    """A prompt of `kind` about `drawings`, and its answer.

    `wording` picks one of `PROMPTS[kind]`; random when not given. `shape` is the kind of shape that
    `colour` and `which` ask for; when not given, any that makes the answer unique.
    """
    wordings = PROMPTS[kind]
    template = wordings[int(rng.integers(len(wordings))) if wording is None else wording]
    if kind == "describe":
        return template, drawings[0].caption
    if kind == "count":
        return template, NUMBERS[len(drawings[0].shapes)]
    if shape is None:
        unique = drawings[0].unique_kinds if kind == "colour" else kinds_in_one_image(drawings)
        shape = str(rng.choice(unique))
    prompt = template.format(shape=shape)
    if kind == "colour":
        return prompt, next(s.colour for s in drawings[0].shapes if s.kind == shape)
    having = [
        n for n, drawing in enumerate(drawings, 1) if shape in {s.kind for s in drawing.shapes}
    ]
    return prompt, f"image {having[0]}"


def kinds_in_one_image(drawings: Sequence[Drawing]) -> tuple[str, ...]:
    """The kinds of shape that exactly one of `drawings` has."""
    having = [kind for drawing in drawings for kind in {shape.kind for shape in drawing.shapes}]
    return tuple(kind for kind in SHAPES if having.count(kind) == 1)


def drawings_for(
    rng: np.random.Generator,
    kind: Kind,
    images: int | None = None,
    *,
    max_shapes: int = MAX_SHAPES,
    max_side: int = MAX_SIDE,
) -> tuple[list[Drawing], str | None]:
    """Drawings that a question of `kind` can be asked about, and the shape to ask for if any.

    `images` is how many (2 to 4) where the kind takes several; random when not given. Drawings that
    are asked about together have at most 3 shapes each.
    """
    if kind == "text":
        return [], None
    if kind not in MULTI_IMAGE_KINDS:
        shape = str(rng.choice(SHAPES)) if kind == "colour" else None
        labels = random_labels(rng, int(rng.integers(1, max_shapes + 1)), unique=shape)
        return [draw(rng, labels, max_side=max_side)], shape
    if images is None:
        images = int(rng.integers(2, 5))
    shape = str(rng.choice(SHAPES))
    place = int(rng.integers(images))
    most = min(max_shapes, 3)
    drawings = []
    for index in range(images):
        count = int(rng.integers(1, most + 1))
        condition = {"unique": shape} if index == place else {"without": shape}
        drawings.append(draw(rng, random_labels(rng, count, **condition), max_side=max_side))
    return drawings, shape


def examples(
    rng: np.random.Generator, kind: Kind, *, images: int | None = None, wording: int | None = None
) -> Iterator[Example]:
    """Endless examples of `kind`; `images` and `wording` fix what is otherwise random.

    `wording` 0 is the plain form of the prompt, such as `Describe this image.`
    """
    while True:
        if kind == "text":
            prompts = list(REPLIES)
            prompt = prompts[int(rng.integers(len(prompts))) if wording is None else wording]
            yield Example((), prompt, REPLIES[prompt])
            continue
        drawings, shape = drawings_for(rng, kind, images)
        prompt, answer = question(rng, kind, drawings, wording=wording, shape=shape)
        yield Example(tuple(drawing.image for drawing in drawings), prompt, answer)


def user_message(
    prompt: str, images: Sequence[Image.Image] = (), *, text_first: bool = False
) -> dict[str, Any]:
    """A chat message with the images as parts of its content, before or after the text."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    text = {"type": "text", "text": prompt}
    content: str | list[dict[str, Any]] = prompt
    if parts:
        content = [text, *parts] if text_first else [*parts, text]
    return {"role": "user", "content": content}


def _place(
    rng: np.random.Generator, labels: Sequence[Label], width: int, height: int
) -> list[Shape]:
    """Find room for every label; starts over, with smaller shapes, when one does not fit."""
    smallest = max(10, min(width, height) // 8)
    largest = max(smallest + 1, int(min(width, height) * 0.28))
    while True:
        shapes: list[Shape] = []
        for colour, kind in labels:
            for _ in range(12):
                radius = int(rng.integers(smallest, largest + 1))
                x = int(rng.integers(radius + 1, width - radius - 1))
                y = int(rng.integers(radius + 1, height - radius - 1))
                if all(_apart(x, y, radius, other) for other in shapes):
                    shapes.append(Shape(colour, kind, x, y, radius))
                    break
            else:
                break
        if len(shapes) == len(labels):
            return shapes
        largest = max(smallest + 1, largest - 1)


def _apart(x: int, y: int, radius: int, other: Shape) -> bool:
    """Whether a shape there touches no part of `other`'s box."""
    return max(abs(x - other.x), abs(y - other.y)) > radius + other.radius + 2


def _paint(rng: np.random.Generator, shapes: Sequence[Shape], size: tuple[int, int]) -> Image.Image:
    """Paint the shapes on white, each in a slightly different shade of its colour."""
    image = Image.new("RGB", size, "white")
    canvas = ImageDraw.Draw(image)
    for shape in shapes:
        shade = np.clip(np.add(COLOURS[shape.colour], rng.integers(-15, 16, 3)), 0, 255)
        fill = int(shade[0]), int(shade[1]), int(shade[2])
        x, y, radius = shape.x, shape.y, shape.radius
        if shape.kind == "circle":
            canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        elif shape.kind == "square":
            canvas.rectangle((x - radius, y - radius, x + radius, y + radius), fill=fill)
        else:
            corners = [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)]
            canvas.polygon(corners, fill=fill)
    return image
