"""`media_io_kwargs`: checked by name, and honoured where media are read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from PIL import Image

from protocol.errors import InvalidRequest
from render.hashing import image_hash
from render.image import decode
from render.media_io import check_media_io, image_io, sampled, video_io
from render.video import VideoInfo
from tests.render.asking import chat, image, render
from tests.render.conftest import encoded

ALL = ("image", "video", "audio")
INFO = VideoInfo(total=101, fps=10.0, width=64, height=64)


@pytest.mark.parametrize(
    "given",
    [
        None, {}, {"image": {}}, {"image": {"image_mode": "RGB"}},
        {"image": {"rgba_background_color": [0, 128, 255]}}, {"video": {"num_frames": -1}},
        {"video": {"fps": 2, "num_frames": 8}}, {"audio": {}},
    ],
)  # fmt: skip
def test_what_can_be_honoured_is_taken(given: dict[str, Any] | None) -> None:
    check_media_io(given, ALL)


@pytest.mark.parametrize(
    ("given", "modalities", "param"),
    [
        ({"image": {"image_mode": "L"}}, ALL, "media_io_kwargs.image"),
        ({"image": {"rgba_background_color": [0, 0]}}, ALL, "media_io_kwargs.image"),
        ({"image": {"rgba_background_color": [0, 0, 256]}}, ALL, "media_io_kwargs.image"),
        ({"image": {"colour": 1}}, ALL, "media_io_kwargs.image"),
        ({"image": 5}, ALL, "media_io_kwargs.image"),
        ({"video": {"num_frames": 0}}, ALL, "media_io_kwargs.video"),
        ({"video": {"num_frames": 2**70}}, ALL, "media_io_kwargs.video"),
        ({"video": {"fps": -1}}, ALL, "media_io_kwargs.video"),
        ({"audio": {"audio_backend": "x"}}, ALL, "media_io_kwargs.audio"),
        ({"audio": {}}, ("image",), "media_io_kwargs.audio"),
        ({"smell": {}}, ALL, "media_io_kwargs.smell"),
    ],
)
def test_what_cannot_be_honoured_names_its_field(
    given: dict[str, Any], modalities: tuple[str, ...], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_media_io(given, modalities)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        ({}, None),
        ({"num_frames": 5}, [0, 25, 50, 75, 100]),
        ({"num_frames": -1}, list(range(101))),
        ({"fps": 0.5}, [0, 25, 50, 75, 100]),
        ({"fps": 0.5, "num_frames": 2}, [0, 100]),
        ({"fps": 0.5, "num_frames": -1}, [0, 25, 50, 75, 100]),
        ({"fps": 0.001}, [0]),
        ({"num_frames": 500}, list(range(101))),
    ],
)
def test_frames_are_evenly_spread(options: dict[str, Any], frames: list[int] | None) -> None:
    assert sampled(video_io(options), INFO) == frames


def test_what_shows_through_is_of_the_colour_and_of_the_hash() -> None:
    clear = encoded(Image.new("RGBA", (4, 4), (9, 9, 9, 0)))
    colour = image_io({"rgba_background_color": [1, 2, 3]}).rgba_background_color
    assert decode(clear, 100, colour).image.getpixel((0, 0)) == (1, 2, 3)
    fields: dict[str, Any] = {"converted": True, "model_id": "m", "mm_processor_kwargs": None}
    plain = image_hash(clear, **fields)
    given = {"rgba_background_color": [1, 2, 3]}
    assert image_hash(clear, **fields, media_io_kwargs=given, background=colour) != plain
    assert image_hash(clear, **fields, media_io_kwargs={}) == plain


@pytest.mark.asyncio(loop_scope="session")
async def test_a_server_reads_media_as_the_request_wants(http: httpx.AsyncClient) -> None:
    clear = image(encoded(Image.new("RGBA", (64, 64), (9, 9, 9, 0))))
    black = {"image": {"rgba_background_color": [0, 0, 0]}}
    plain, dark = [
        (await render(http, chat(clear, **fields)))["features"]
        for fields in ({}, {"media_io_kwargs": black})
    ]
    assert plain["mm_hashes"] != dark["mm_hashes"]
    assert plain["kwargs_data"] != dark["kwargs_data"]
    answer = await http.post(
        "/v1/chat/completions/render", json=chat(clear, media_io_kwargs={"image": {"x": 1}})
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "media_io_kwargs.image"
