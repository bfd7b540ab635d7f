"""Videos: frames as the model samples them, hostile containers refused, items of the families."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from protocol.errors import InvalidRequest
from protocol.items import Flat, Tensor, metadata_of
from render import video
from render.checkpoint import open_checkpoint
from render.families import create
from render.families.qwen_vl import timestamps
from render.video import Frames, VideoInfo, decode, thinned
from tests.render import checkpoints
from tests.render.checkpoints import write


def clip(frames: int = 12, fps: int = 4, form: str = "mp4", codec: str = "mpeg4") -> bytes:
    """A video whose frame n is grey of brightness 10 n."""
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream = container.add_stream(codec, rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = Fraction(1, fps)
        for n in range(frames):
            grey = np.full((48, 64, 3), 10 * n, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def decoded(data: bytes, indices: list[int], most: int = 99, pixels: int = 10**6) -> Frames:
    return decode(data, lambda _info: indices, max_pixels=pixels, max_frames=most)


@pytest.mark.parametrize(
    ("form", "codec"), [("mp4", "mpeg4"), ("avi", "mpeg4"), ("matroska", "mpeg4")]
)
def test_the_chosen_frames_are_decoded(form: str, codec: str) -> None:
    found = decoded(clip(form=form, codec=codec), [0, 5, 11])
    assert found.pixels.shape == (3, 48, 64, 3)
    assert found.pixels.dtype == np.uint8
    assert abs(found.pixels.mean(axis=(1, 2, 3)) - [0, 50, 110]).max() < 6
    assert (found.info.total, round(found.info.fps)) == (12, 4)
    assert found.info.duration == pytest.approx(3.0, rel=0.1)


def test_too_many_frames_are_thinned_out() -> None:
    assert decoded(clip(), list(range(12)), most=3).indices == [0, 6, 11]
    assert thinned([4, 5], 3) == [4, 5]


def test_frames_that_a_container_only_promises_are_the_last_one() -> None:
    found = decoded(clip(), [10, 11, 40])
    assert (found.pixels[1] == found.pixels[2]).all()


def test_too_many_pixels_are_refused_before_decoding() -> None:
    with pytest.raises(InvalidRequest, match="64x48"):
        decoded(clip(), [0], pixels=1000)


def test_too_long_a_video_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_TOTAL_FRAMES", 11)
    with pytest.raises(InvalidRequest, match="12 frames"):
        decoded(clip(), [0])


HOSTILE = [
    b"",
    b"no video",
    b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    b"ffconcat version 1.0\nfile /etc/passwd\n",
    b"#EXTM3U\n#EXTINF:1,\nhttp://169.254.169.254/latest\n#EXT-X-ENDLIST\n",
    b"RIFF\xff\xff\xff\xffAVI LIST",
    b"\x1aE\xdf\xa3" + b"\xff" * 100,
    b"\0\0\0\x18ftypmp42" + b"\0" * 64,
]


@pytest.mark.parametrize("data", HOSTILE)
def test_what_is_no_video_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decoded(data, [0])


def test_damaged_videos_never_raise_anything_else() -> None:
    whole = np.frombuffer(clip(), np.uint8)
    rng = np.random.default_rng(4)
    for cut in (0.2, 0.5, 0.9):
        with pytest.raises(InvalidRequest):
            decoded(whole[: int(len(whole) * cut)].tobytes(), [0])
    for _ in range(30):
        data = whole.copy()
        data[rng.integers(0, len(data), 8)] = rng.integers(0, 256, 8)
        try:
            decoded(data.tobytes(), [0, 11])
        except InvalidRequest:
            continue


def test_the_time_of_a_patch_is_the_middle_of_its_frames() -> None:
    assert timestamps([0, 10, 20, 30, 40], 10.0, 2) == [0.5, 2.5, 4.0]


@pytest.mark.parametrize(("model_type", "patch"), [("qwen3_vl", 16), ("qwen2_5_vl", 14)])
def test_qwen_videos(tmp_path: Path, model_type: str, patch: int) -> None:
    checkpoints.qwen_vl(tmp_path, model_type, patch)
    three = model_type == "qwen3_vl"
    write(
        tmp_path,
        "video_preprocessor_config.json",
        {
            "video_processor_type": f"Qwen{'3' if three else '2'}VLVideoProcessor",
            "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2, "fps": 2,
            "min_frames": 2, "max_frames": 8, "do_sample_frames": True,
            "size": {"shortest_edge": 4096, "longest_edge": 65536},
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        },
    )  # fmt: skip
    name = "Qwen3VLProcessor" if three else "Qwen2_5_VLProcessor"
    write(tmp_path, "processor_config.json", {"processor_class": name})
    family = create(open_checkpoint(tmp_path))
    family.load()
    info = VideoInfo(12, 4.0, 64, 48)
    chosen = family.choose_frames(info)
    assert len(chosen) == 6
    frames = decode(clip(), family.choose_frames, max_pixels=10**6, max_frames=99)
    item = family.video(frames, {})

    grid = item.fields["video_grid_thw"].data
    pixels = item.fields["pixel_values_videos"].data
    assert isinstance(grid, Tensor)
    assert isinstance(pixels, Tensor)
    t, h, w = np.frombuffer(grid.data, np.int64)
    assert t == 3
    assert pixels.shape == (t * h * w, 3 * 2 * patch * patch)
    assert pixels.dtype == "uint8"
    assert item.fields["pixel_values_videos"].factory == Flat([[[0, int(t * h * w), None]]])
    rows = sum(run.repeat for run in item.runs if run.embeds)
    assert rows == t * h * w // 4
    own = "timestamps" if three else "second_per_grid_ts"
    assert set(metadata_of(item.fields)) == {"video_grid_thw", own}
    assert any(not run.embeds for run in item.runs) == three
