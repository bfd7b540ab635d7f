"""Sounds: decoding and its limits, the features of the model's own processor, and a server."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import pytest_asyncio
import soundfile
import torch
from transformers import AutoProcessor

from protocol.errors import InvalidRequest
from protocol.items import Batched, Tensor, encode
from protocol.items import decode as decode_item
from render.audio import decode, resampled
from render.checkpoint import open_checkpoint
from render.config import MediaConfig, RenderConfig
from render.families import create
from render.server import RenderServer
from tests.render import checkpoints
from tests.render.asking import chat, render

RATE = 16_000


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> np.ndarray[Any, Any]:
    """A sine, float32 [samples]."""
    at = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * at)).astype(np.float32)


def sound(
    samples: np.ndarray[Any, Any], rate: int = RATE, form: str = "WAV", subtype: str | None = None
) -> bytes:
    """A sound file."""
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, subtype=subtype)
    return out.getvalue()


def in_container(samples: np.ndarray[Any, Any], rate: int, form: str, codec: str) -> bytes:
    """A file that libsndfile does not read."""
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return out.getvalue()


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "FLOAT"), ("WAV", "PCM_16"), ("FLAC", None)])
def test_samples_at_the_models_rate_are_those_of_the_file(form: str, subtype: str | None) -> None:
    samples = tone(0.5)
    found = decode(sound(samples, form=form, subtype=subtype), RATE, max_seconds=1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, samples, atol=0 if subtype == "FLOAT" else 2**-15)


@pytest.mark.parametrize(
    "data",
    [
        sound(tone(0.5, 44_100), 44_100),
        sound(np.stack([tone(0.5, 8_000)] * 2, axis=1), 8_000),
        sound(tone(0.5, 48_000), 48_000, "OGG", "VORBIS"),
        sound(tone(0.5, 48_000), 48_000, "MP3"),
        in_container(tone(0.5, 48_000), 48_000, "mp4", "aac"),
        in_container(tone(0.5, 48_000), 48_000, "webm", "libopus"),
    ],
    ids=["44100", "stereo 8000", "vorbis", "mp3", "mp4", "webm"],
)
def test_another_rate_or_codec_gives_the_same_tone(data: bytes) -> None:
    found = decode(data, RATE, max_seconds=1)
    assert abs(len(found) - RATE // 2) < RATE // 10
    middle = found[RATE // 8 : RATE // 8 + 4096]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(float(spectrum.argmax()) * RATE / len(middle) - 440) < 8


def test_a_very_short_sound_is_resampled_too() -> None:
    assert len(resampled(tone(0.01, 8_000), 8_000, RATE)) == 160
    assert resampled(tone(0.01), RATE, RATE) is not None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sound(tone(3)), "3.0 seconds long, more than the 1 allowed"),
        (in_container(tone(3, 48_000), 48_000, "mp4", "aac"), "seconds long"),
        (sound(tone(0.1, 500), 500), "500 samples a second"),
        (sound(np.zeros((50, 64), np.float32)), "64 channels"),
        (sound(np.zeros(0, np.float32)), "empty"),
        (sound(np.full(200, np.nan, np.float32), subtype="FLOAT"), "no numbers"),
        (b"no sound at all, but some bytes of text", "not a sound"),
        (sound(tone(0.5), form="FLAC")[:60], "not a sound|empty"),
    ],
    ids=["long", "long mp4", "rate", "channels", "empty", "nan", "text", "cut"],
)
def test_what_cannot_be_heard_says_why(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(data, RATE, max_seconds=1)


def test_a_header_that_promises_less_than_there_is_does_not_pass() -> None:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(bytes(2 * 10 * RATE))
    data = bytearray(out.getvalue())
    data[40:44] = (2 * RATE).to_bytes(4, "little")  # one second of data, says the chunk
    assert len(decode(bytes(data), RATE, max_seconds=2)) <= 2 * RATE + 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.qwen2_audio(tmp_path_factory.mktemp("qwen2_audio"))


@pytest.mark.parametrize("seconds", [0.2, 1.37, 2.0, 5.0])
def test_features_are_those_of_the_models_own_processor(checkpoint: Path, seconds: float) -> None:
    family = create(open_checkpoint(checkpoint))
    family.load()
    samples = tone(seconds)
    item = family.audio(samples, {})
    own = AutoProcessor.from_pretrained(checkpoint)(
        text=["<|AUDIO|>"], audio=[samples], sampling_rate=RATE, return_tensors="pt",
        truncation=True,
    )  # fmt: skip
    decoded = decode_item(encode(item.fields))
    for name in ("input_features", "feature_attention_mask"):
        field = decoded[name]
        wanted = own[name][0]
        if wanted.is_floating_point():
            wanted = wanted.to(torch.bfloat16)
        assert field.factory == Batched()
        assert isinstance(field.data, Tensor)
        assert field.data.shape == tuple(wanted.shape)
        raw = wanted.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert bytes(field.data.data) == raw
    rows = sum(run.repeat for run in item.runs if run.embeds)
    assert rows == own["input_ids"][0].tolist().count(family.placeholders["audio"].token_id)
    assert rows == ((min(int(seconds * 100), 200) - 1) // 2 + 1 - 2) // 2 + 1


def test_a_sound_without_a_row_is_refused(checkpoint: Path) -> None:
    family = create(open_checkpoint(checkpoint))
    family.load()
    with pytest.raises(ValueError, match="too short"):
        family.audio(tone(0.01), {})


# --- a server ------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    media = MediaConfig(max_audio_seconds=4, max_items={"audio": 3})
    server = RenderServer(RenderConfig(model=str(checkpoint), processes=1, media=media))
    replica = await server.start()
    async with httpx.AsyncClient(base_url=replica.http, timeout=30) as client:
        yield client
    await server.stop(0.0)


def audio_part(data: bytes, **fields: Any) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}, **fields}


def audio_url(data: bytes) -> dict[str, Any]:
    url = "data:audio/wav;base64," + base64.b64encode(data).decode()
    return {"type": "audio_url", "audio_url": {"url": url}}


@pytest.mark.asyncio(loop_scope="module")
async def test_sounds_are_items_with_hashes_placeholders_and_tensors(
    http: httpx.AsyncClient,
) -> None:
    whole = (tone(0.5) * 2**15).astype(np.int16)
    one, flac = sound(whole), sound(whole, form="FLAC")
    two = sound(tone(1.0, hertz=900))
    body = chat("What is ", audio_part(one), " and ", audio_url(two), audio_url(one))
    answer = await render(http, body)
    features = answer["features"]
    assert {key: set(value) for key, value in features.items() if value} == {
        "mm_hashes": {"audio"}, "mm_placeholders": {"audio"}, "kwargs_data": {"audio"},
    }  # fmt: skip
    hashes, places = features["mm_hashes"]["audio"], features["mm_placeholders"]["audio"]
    assert hashes[0] == hashes[2] != hashes[1]
    assert [place["length"] for place in places] == [12, 25, 12]
    ids = answer["token_ids"]
    for place in places:
        covered = ids[place["offset"] : place["offset"] + place["length"]]
        assert len(set(covered)) == 1
        assert ids[place["offset"] - 1] != covered[0] != ids[place["offset"] + place["length"]]
    item = decode_item(base64.b64decode(features["kwargs_data"]["audio"][1]))
    assert set(item) == {"input_features", "feature_attention_mask"}
    again = await render(http, chat(audio_url(flac), mm_payload="none"))
    assert again["features"]["mm_hashes"]["audio"][0] == hashes[0], "it is of what is heard"


@pytest.mark.asyncio(loop_scope="module")
async def test_faults_name_the_part(http: httpx.AsyncClient) -> None:
    long, text = sound(tone(5)), b"text"
    cases = [
        (chat("x", audio_part(long)), 400, "messages[0].content[1].input_audio"),
        (chat(audio_url(text)), 400, "messages[0].content[0].audio_url"),
        (chat({"type": "input_audio", "input_audio": {"format": "wav"}}), 400,
         "messages[0].content[0].input_audio"),
        (chat({"type": "image_url", "image_url": {"url": "data:,"}}), 400,
         "messages[0].content[0].image_url"),
        (chat(*[audio_part(sound(tone(0.2)))] * 4), 400, "audio"),
        (chat("x", media_io_kwargs={"audio": {}}), 400, "media_io_kwargs"),
    ]  # fmt: skip
    answers = await asyncio.gather(
        *(http.post("/v1/chat/completions/render", json=body) for body, _, _ in cases)
    )
    found = [(one.status_code, one.json()["error"]["param"]) for one in answers]
    assert found == [(status, param) for _, status, param in cases]
