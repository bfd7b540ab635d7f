"""A render server over HTTP, with real processes, on a tiny Qwen3-VL checkpoint."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from protocol.generate import GenerateRequest
from protocol.items import Batched, Flat, Tensor, decode_base64
from protocol.replica import Replica
from serving.rpc_client import RpcChannel
from tests.render.asking import METADATA, call, chat, image, render
from tests.render.conftest import data_url, encoded, picture

pytestmark = pytest.mark.asyncio(loop_scope="session")

KWARGS_HEAD = bytes.fromhex(
    "82ac706978656c5f76616c75657382a46461746193a575696e743892cc8ccd0600c90003480003"
)
KWARGS_TAIL = bytes.fromhex(
    "a56669656c6492a4666c617483ab6b6565705f6f6e5f637075c2a6736c6963657391919300cc8cc0a364696d00"
)
"""Around the 215040 bytes of its patches (wire-protocol §4.4)."""


async def test_one_image_is_byte_for_byte_the_contracts_example(http: httpx.AsyncClient) -> None:
    body = await render(http, chat(image(), "Describe this image."))
    features = body["features"]
    assert features["mm_metadata"] == {"image": [METADATA]}
    import base64

    raw = base64.b64decode(features["kwargs_data"]["image"][0])
    assert len(raw) == 215_210
    assert raw.startswith(KWARGS_HEAD + b"\xff" * 64)
    assert raw[len(KWARGS_HEAD) + 215_040 :].startswith(KWARGS_TAIL)
    assert raw.endswith(base64.b64decode(METADATA)[1:])


async def test_the_prompt_has_a_row_per_placeholder_token(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    body = await render(http, chat("a", image(), "b", max_tokens=7, temperature=0.5))
    (found,) = body["features"]["mm_placeholders"]["image"]
    pad = tokenizer.token_to_id("<|image_pad|>")
    ids = body["token_ids"]
    assert found["length"] == 10 * 14 // 4
    assert ids[found["offset"] : found["offset"] + 35] == [pad] * 35
    assert ids.count(pad) == 35
    text = "<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|>b<|im_end|>\n"
    expected = tokenizer.encode(text + "<|im_start|>assistant\n").ids
    where = expected.index(pad)
    assert ids == expected[:where] + [pad] * 35 + expected[where + 1 :]
    assert body["sampling_params"]["max_tokens"] == 7
    assert body["sampling_params"]["temperature"] == 0.5
    assert body["sampling_params"]["top_k"] == 20  # the model's own default


async def test_every_key_of_the_contract_is_there(http: httpx.AsyncClient) -> None:
    body = await render(http, chat("hello"))
    assert set(body) == {
        "request_id", "token_ids", "token_offsets", "features", "content_parts",
        "sampling_params", "model", "reasoning_ended", "reasoning_parser_kwargs",
        "return_token_ids", "output_mode", "stream", "stream_options", "cache_salt", "priority",
        "kv_transfer_params", "ec_transfer_params",
    }  # fmt: skip
    assert body["features"] is None
    assert body["request_id"].startswith("chatcmpl-")
    assert body["sampling_params"]["temperature"] == 1.0
    assert body["sampling_params"]["max_tokens"] == 2048 - len(body["token_ids"])
    msgspec.convert(body, GenerateRequest)


async def test_patches_are_the_resized_bytes_in_the_models_order(http: httpx.AsyncClient) -> None:
    """Patch by patch against a plain computation: 2x2 merge blocks, channel, time, row, column."""
    size = (128, 64)
    pixels = np.random.default_rng(2).integers(0, 255, (64, 128, 3), np.uint8)
    body = await render(http, chat(image(encoded(Image.fromarray(pixels)))))
    item = decode_base64(body["features"]["kwargs_data"]["image"][0])
    values, grid = item["pixel_values"], item["image_grid_thw"]
    assert values.factory == Flat([[[0, 32, None]]])
    assert grid.factory == Batched(keep_on_cpu=True)
    assert isinstance(values.data, Tensor)
    assert (values.data.dtype, values.data.shape) == ("uint8", (32, 1536))
    found = np.frombuffer(values.data.data, np.uint8).reshape(32, 3, 2, 16, 16)
    n = 0
    for by in range(size[1] // 32):
        for bx in range(size[0] // 32):
            for y in (2 * by, 2 * by + 1):
                for x in (2 * bx, 2 * bx + 1):
                    patch = pixels[16 * y : 16 * y + 16, 16 * x : 16 * x + 16].transpose(2, 0, 1)
                    assert (found[n, :, 0] == patch).all()
                    assert (found[n, :, 1] == patch).all()
                    n += 1


async def test_several_images_keep_their_order(http: httpx.AsyncClient) -> None:
    red, blue = picture(64, 64, "red"), picture(128, 64, "blue")
    body = await render(http, chat(image(red), "and", image(blue), image(red)))
    features = body["features"]
    hashes = features["mm_hashes"]["image"]
    assert hashes[0] == hashes[2] != hashes[1]
    assert [r["length"] for r in features["mm_placeholders"]["image"]] == [4, 8, 4]
    kwargs = features["kwargs_data"]["image"]
    assert kwargs[0] == kwargs[2] != kwargs[1]


async def test_literal_placeholders_in_text_stay_text(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    body = await render(http, chat("<|image_pad|><|im_end|>", image(), "<|vision_start|>"))
    ids = body["token_ids"]
    (found,) = body["features"]["mm_placeholders"]["image"]
    pad, end = tokenizer.token_to_id("<|image_pad|>"), tokenizer.token_to_id("<|im_end|>")
    assert ids.count(pad) == found["length"]
    assert ids.count(end) == 1
    assert ids.count(tokenizer.token_to_id("<|vision_start|>")) == 1
    assert "<|image_pad|><|im_end|>" in tokenizer.decode(ids[: found["offset"]])


async def test_without_tensors_hashes_and_ranges_remain(http: httpx.AsyncClient) -> None:
    features = (await render(http, chat(image(), mm_payload="none")))["features"]
    assert features["kwargs_data"] is None
    assert features["mm_metadata"] is None
    assert len(features["mm_hashes"]["image"]) == 1


async def test_processor_arguments_change_the_item_and_its_hash(http: httpx.AsyncClient) -> None:
    plain = (await render(http, chat(image())))["features"]
    kwargs = {"size": {"shortest_edge": 1024, "longest_edge": 4096}}
    small = (await render(http, chat(image(), mm_processor_kwargs=kwargs)))["features"]
    assert small["mm_placeholders"]["image"][0]["length"] < 35
    assert small["mm_hashes"] != plain["mm_hashes"]


async def test_tools_and_template_arguments_reach_the_template(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    body = chat("x", tools=[tool], chat_template_kwargs={"enable_thinking": False})
    text = tokenizer.decode((await render(http, body))["token_ids"], skip_special_tokens=False)
    assert '"name": "weather"' in text
    assert text.endswith("<think>\n\n</think>\n")


async def test_a_final_message_can_be_continued(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a red"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    text = tokenizer.decode((await render(http, body))["token_ids"], skip_special_tokens=False)
    assert text.endswith("assistant\na red")


async def test_completions_take_every_form_of_prompt(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("a red circle").ids
    for prompt, count in [("a red circle", 1), (["a red circle"] * 2, 2), (ids, 1), ([ids], 1)]:
        answer = await http.post("/v1/completions/render", json={"prompt": prompt})
        rendered = answer.json()
        assert [one["token_ids"] for one in rendered] == [ids] * count
        assert all(one["sampling_params"]["max_tokens"] == 16 for one in rendered)
        assert len({one["request_id"] for one in rendered}) == count


async def test_offsets_point_into_the_text(http: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    text = "a red circle <|image_pad|>"
    expected = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    body = await render(http, chat(text, return_token_offsets=True))
    offsets = body["token_offsets"]
    assert len(offsets) == len(body["token_ids"])
    assert "".join(expected[a:b] for a, b in dict.fromkeys(map(tuple, offsets))) == expected
    answer = await http.post(
        "/v1/completions/render", json={"prompt": text[:12], "return_token_offsets": True}
    )
    assert answer.json()[0]["token_offsets"][-1][1] == 12
    assert (await render(http, chat(text)))["token_offsets"] is None


async def test_truncation_keeps_the_end(http: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    body = await render(http, chat("a red circle and a blue square", truncate_prompt_tokens=5))
    assert len(body["token_ids"]) == 5
    assert tokenizer.decode(body["token_ids"]).endswith("assistant\n")


async def test_models_and_tokens(http: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    card = (await http.get("/v1/models")).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
    ids = tokenizer.encode("a red circle").ids
    found = (await http.post("/tokenize", json={"prompt": "a red circle"})).json()
    assert found == {"count": len(ids), "max_model_len": 2048, "tokens": ids, "token_strs": None}
    found = (await http.post("/tokenize", json=chat("x", return_token_strs=True))).json()
    assert found["token_strs"][0] == "<|im_start|>"
    found = (await http.post("/detokenize", json={"tokens": [*ids, 10**9, 2**62]})).json()
    assert found == {"prompt": "a red circle"}
    for body in ({"tokens": [-1]}, {"tokens": "x"}, {}):
        assert (await http.post("/detokenize", json=body)).status_code == 400


async def test_a_repeated_image_is_processed_once(http: httpx.AsyncClient) -> None:
    """At the same time and later: the pool sees one of ten."""

    async def processed() -> float:
        lines = (await http.get("/metrics")).text.splitlines()
        (line,) = [x for x in lines if x.startswith("triptych_render_media_seconds_count")]
        return float(line.split()[1])

    before = await processed()
    body = chat(image(picture(100, 100, "green")))
    await asyncio.gather(*(render(http, body) for _ in range(5)))
    for _ in range(5):
        await render(http, body)
    assert await processed() == before + 1


async def test_responses_and_messages_are_the_same_prompt_as_the_chat(
    http: httpx.AsyncClient, replica: tuple[Replica, RpcChannel]
) -> None:
    url = data_url(picture())
    expected = await render(http, chat(image(), "Describe this image.", max_tokens=9))
    response = {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": url, "detail": "auto"},
                    {"type": "input_text", "text": "Describe this image."},
                ],
            }
        ],
        "max_output_tokens": 9,
    }
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    message = {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": source},
                    {"type": "text", "text": "Describe this image."},
                ],
            }
        ],
        "max_tokens": 9,
    }
    for path, body, prefix in [
        ("/v1/responses/render", response, "resp_"),
        ("/v1/messages/render", message, "chatcmpl-"),
    ]:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["request_id"].startswith(prefix)
        for key in ("token_ids", "features", "sampling_params"):
            assert found[key] == expected[key]
    for endpoint, body in (("responses", response), ("messages", message)):
        (request,) = await call(replica[1], body, endpoint)  # type: ignore[arg-type]
        assert request.token_ids == expected["token_ids"]


async def test_an_error_of_a_responses_request_names_its_own_field(http: httpx.AsyncClient) -> None:
    part = {"type": "input_image", "image_url": data_url(b"no image")}
    body = {"input": [{"role": "user", "content": [part]}]}
    answer = await http.post("/v1/responses/render", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].content[0].image_url"
