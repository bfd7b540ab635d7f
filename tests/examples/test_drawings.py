"""The drawings are what they say they are, and follow from their seed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from examples.drawings import (
    COLOURS,
    KINDS,
    MAX_SIDE,
    MIN_SIDE,
    NUMBERS,
    PROMPTS,
    REPLIES,
    SHAPES,
    Drawing,
    Kind,
    Shape,
    draw,
    examples,
    random_labels,
    user_message,
)

seeds = st.integers(0, 2**32 - 1)


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_shapes_lie_inside_and_apart(seed: int) -> None:
    """Every shape is inside the image, no two touch, and no two are alike."""
    drawing = draw(np.random.default_rng(seed))
    width, height = drawing.image.size
    assert MIN_SIDE <= width <= MAX_SIDE
    assert MIN_SIDE <= height <= MAX_SIDE
    for shape in drawing.shapes:
        assert shape.radius < shape.x < width - shape.radius
        assert shape.radius < shape.y < height - shape.radius
    for one, other in itertools.combinations(drawing.shapes, 2):
        apart = max(abs(one.x - other.x), abs(one.y - other.y))
        assert apart > one.radius + other.radius
        assert one.name != other.name


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_shapes_are_painted_in_their_colour(seed: int) -> None:
    """The centre of a shape is closest to the colour it is named after, and a corner is white."""
    drawing = draw(np.random.default_rng(seed))
    for shape in drawing.shapes:
        pixel = np.array(drawing.image.getpixel((shape.x, shape.y)))
        distance = {name: np.abs(pixel - rgb).sum() for name, rgb in COLOURS.items()}
        assert min(distance, key=lambda name: distance[name]) == shape.colour
    assert drawing.image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_examples(kind: Kind) -> None:
    """Pixels, prompts and answers all follow from the seed."""
    first, second = (
        list(itertools.islice(examples(np.random.default_rng(5), kind), 3)) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert one[1:] == other[1:]
        assert [i.tobytes() for i in one.images] == [i.tobytes() for i in other.images]


@pytest.mark.parametrize("images", [2, 3, 4])
def test_the_number_of_images_can_be_fixed(images: int) -> None:
    """`images` says how many images each example has."""
    source = examples(np.random.default_rng(1), "which", images=images)
    assert {len(example.images) for example in itertools.islice(source, 5)} == {images}


def test_wording_fixes_the_prompt() -> None:
    """Wording 0 is the plain prompt, and a random wording is one of those listed."""
    rng = np.random.default_rng(2)
    assert next(examples(rng, "describe", wording=0)).prompt == "Describe this image."
    source = itertools.islice(examples(rng, "count"), 60)
    assert {example.prompt for example in source} == set(PROMPTS["count"])


def test_answers_have_their_documented_form() -> None:
    """Each kind answers in the words that the module's table shows."""
    rng = np.random.default_rng(3)
    forms = {
        "describe": r"a \w+ \w+(((, a \w+ \w+)* and a \w+ \w+)?)",
        "colour": "|".join(COLOURS),
        "count": "|".join(NUMBERS[1:]),
        "which": "image [1-4]",
    }
    for kind in PROMPTS:
        for example in itertools.islice(examples(rng, kind), 10):
            assert re.fullmatch(forms[kind], example.answer), example.answer


def test_caption_joins_names() -> None:
    """Commas between, `and` before the last."""
    labels = (("red", "circle"), ("blue", "square"), ("black", "circle"))
    captions = [captioned(labels[:count]) for count in (1, 2, 3)]
    assert captions == [
        "a red circle",
        "a red circle and a blue square",
        "a red circle, a blue square and a black circle",
    ]


@given(st.permutations([("red", "square"), ("red", "triangle"), ("blue", "circle")]))
@settings(max_examples=6, deadline=None)
def test_caption_orders_by_colour_then_kind(labels: list[tuple[str, str]]) -> None:
    """Neither the order they were asked for in nor the place of the shapes matters."""
    assert captioned(labels) == "a red square, a red triangle and a blue circle"


def captioned(labels: Sequence[tuple[str, str]]) -> str:
    """The caption of shapes that stand from left to right in the order of `labels`."""
    shapes = [Shape(colour, kind, 20 * n, 40, 8) for n, (colour, kind) in enumerate(labels, 1)]
    return Drawing(Image.new("RGB", (100, 80)), tuple(shapes)).caption


@given(seeds, st.integers(1, 4), st.sampled_from(SHAPES))
@settings(max_examples=20, deadline=None)
def test_labels_keep_their_conditions(seed: int, count: int, shape: str) -> None:
    """`unique` occurs once, `without` never, and no label twice."""
    rng = np.random.default_rng(seed)
    once = random_labels(rng, count, unique=shape)
    assert [kind for _, kind in once].count(shape) == 1
    never = random_labels(rng, count, without=shape)
    assert shape not in {kind for _, kind in never}
    assert len(set(once)) == len(set(never)) == count


def test_labels_that_do_not_fit_are_refused() -> None:
    """Too many labels, or none, or too narrow an image, is a `ValueError`."""
    rng = np.random.default_rng(0)
    labels = random_labels(rng, 4)
    for wrong, size in (([], None), ([*labels, labels[0]], None), (labels, (64, 64))):
        with pytest.raises(ValueError, match="shapes"):
            draw(rng, wrong, size=size)


def test_size_and_labels_can_be_chosen() -> None:
    """A drawing has the size and the shapes asked for."""
    rng = np.random.default_rng(0)
    drawing = draw(rng, [("red", "circle"), ("blue", "square")], size=(200, 90))
    assert drawing.image.size == (200, 90)
    assert {shape.name for shape in drawing.shapes} == {"red circle", "blue square"}


def test_messages_put_images_on_either_side_of_the_text() -> None:
    """Text alone is a string; with images the content is a list of parts."""
    image = draw(np.random.default_rng(0)).image
    assert user_message("Hello!") == {"role": "user", "content": "Hello!"}
    before = user_message("Describe this image.", [image])["content"]
    after = user_message("Describe this image.", [image], text_first=True)["content"]
    assert [part["type"] for part in before] == ["image", "text"]
    assert [part["type"] for part in after] == ["text", "image"]


def test_text_replies_are_fixed() -> None:
    """A prompt without an image has one reply."""
    for example in itertools.islice(examples(np.random.default_rng(4), "text"), 20):
        assert example.answer == REPLIES[example.prompt]
        assert not example.images
