"""What a client gets wrong is answered with a 4xx that names the field; nothing is a 500."""

from __future__ import annotations

import base64
import io
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from PIL import Image

from tests.cluster.asking import chat, message, unseen
from tests.cluster.fleet import MODEL, TOPOLOGIES, Fleet

PICTURE = unseen("describe", 1, seed=51)[0]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60.0) as made:
        yield made


class Case(NamedTuple):
    """A body, and the answer that it must get."""

    name: str
    body: Any
    status: int
    names: str
    """A word of `param` or of the message."""


def with_url(url: Any) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}],
        "max_tokens": 4,
    }


def with_content(content: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4}


def data(raw: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"


def truncated_png() -> bytes:
    buffer = io.BytesIO()
    PICTURE.images[0].save(buffer, "PNG")
    return buffer.getvalue()[:60]


def bomb() -> bytes:
    """A small file that decodes to more pixels than are allowed."""
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def good(**fields: Any) -> dict[str, Any]:
    return chat(PICTURE, **fields)


CHAT = [
    Case("unknown model", good(model="gpt-9"), 404, "model"),
    Case("empty messages", good(messages=[]), 400, "messages"),
    Case("no messages", {"model": MODEL}, 400, "messages"),
    Case("messages of another form", good(messages="hi"), 400, "messages"),
    Case("message without role", good(messages=[{"content": "hi"}]), 400, "role"),
    Case("unknown role", good(messages=[{"role": "wizard", "content": "hi"}]), 400, "role"),
    Case("unknown part", with_content([{"type": "smell", "smell": "rose"}]), 400, "content"),
    Case("content of another form", with_content(5), 400, "content"),
    Case("broken image", with_url(data(b"not an image")), 400, "image"),
    Case("truncated image", with_url(data(truncated_png())), 400, "image"),
    Case("image bomb", with_url(data(bomb())), 400, "image"),
    Case("empty image", with_url(data(b"")), 400, "image"),
    Case("not base64", with_url("data:image/png;base64,@@@"), 400, "image"),
    Case("data url without comma", with_url("data:image/png;base64"), 400, "image"),
    Case("empty url", with_url(""), 400, "image"),
    Case("url that is none", with_url("no url at all"), 400, "image"),
    Case("url that is a number", with_url(7), 400, "image"),
    Case("file url", with_url("file:///etc/passwd"), 400, "image"),
    Case("ftp url", with_url("ftp://example.org/a.png"), 400, "image"),
    Case("loopback", with_url("http://127.0.0.1:1/a.png"), 400, "image"),
    Case("loopback by name", with_url("http://localhost:1/a.png"), 400, "image"),
    Case("loopback in octal", with_url("http://0177.0.0.1/a.png"), 400, "image"),
    Case("loopback as integer", with_url("http://2130706433/a.png"), 400, "image"),
    Case("loopback in IPv6", with_url("http://[::1]:1/a.png"), 400, "image"),
    Case("mapped loopback", with_url("http://[::ffff:127.0.0.1]:1/a.png"), 400, "image"),
    Case("private address", with_url("http://10.0.0.1/a.png"), 400, "image"),
    Case("link-local address", with_url("http://169.254.169.254/latest"), 400, "image"),
    Case("negative max_tokens", good(max_tokens=-1), 400, "max_tokens"),
    Case("max_tokens zero", good(max_tokens=0), 400, "max_tokens"),
    Case("hot", good(temperature=3.0), 400, "temperature"),
    Case("temperature as text", good(temperature="warm"), 400, "temperature"),
    Case("top_p zero", good(top_p=0), 400, "top_p"),
    Case("n zero", good(n=0), 400, "n"),
    Case("greedy choices", good(n=2), 400, "n"),
    Case("huge seed", good(seed=2**70), 400, "seed"),
    Case("empty stop", good(stop=[""]), 400, "stop"),
    Case("many logprobs", good(logprobs=True, top_logprobs=100), 400, "logprobs"),
    Case("alternatives alone", good(top_logprobs=2), 400, "top_logprobs"),
    Case("logit bias", good(logit_bias={"1": 2.0}), 400, "logit_bias"),
    Case("response format", good(response_format={"type": "yaml"}), 400, "response_format.type"),
    Case("beam search", good(use_beam_search=True), 400, "use_beam_search"),
    Case("options without stream", good(stream_options={"include_usage": True}), 400, "stream"),
    Case("salt", good(cache_salt="a/b"), 400, "cache_salt"),
    Case("request id", good(request_id="two words"), 400, "request_id"),
    Case("foreign template", good(chat_template="{{ 1 }}"), 400, "chat_template"),
    Case("too long", good(messages=[message("word " * 20_000)]), 400, "token"),
]


def check(response: httpx.Response, case: Case) -> None:
    assert response.status_code == case.status, response.text[:500]
    detail = response.json()["error"]
    assert set(detail) >= {"message", "type", "param", "code"}
    assert detail["code"] == case.status
    said = f"{detail['param']} {detail['message']}"
    assert case.names.lower() in said.lower(), said
    assert "Traceback" not in response.text


@pytest.mark.parametrize("case", CHAT, ids=lambda case: case.name)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_chat(fleet: Fleet, http: httpx.Client, case: Case, stream: bool) -> None:
    body = case.body if case.name == "options without stream" else case.body | {"stream": stream}
    check(http.post(f"{fleet.url()}/v1/chat/completions", json=body), case)


COMPLETIONS = [
    Case("no prompt", {"model": MODEL}, 400, "prompt"),
    Case("empty list", {"prompt": []}, 400, "prompt"),
    Case("mixed list", {"prompt": ["a", 1]}, 400, "prompt"),
    Case("negative token", {"prompt": [1, -1]}, 400, "prompt.1"),
    Case("token outside the vocabulary", {"prompt": [1, 10_000_000]}, 400, "token"),
    Case("token beyond 64 bit", {"prompt": [2**70]}, 400, "prompt"),
    Case("best of", {"prompt": "a", "best_of": 3}, 400, "best_of"),
    Case("suffix", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    Case("unknown model", {"prompt": "a", "model": "gpt-9"}, 404, "model"),
]


@pytest.mark.parametrize("case", COMPLETIONS, ids=lambda case: case.name)
def test_completions(fleet: Fleet, http: httpx.Client, case: Case) -> None:
    check(http.post(f"{fleet.url()}/v1/completions", json={"model": MODEL} | case.body), case)


def features(*ranges: tuple[int, int], **columns: Any) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": [f"hash{index}" for index in range(len(ranges))]},
        "mm_placeholders": {
            "image": [{"offset": offset, "length": length} for offset, length in ranges]
        },
        **columns,
    }


def tokens(**fields: Any) -> dict[str, Any]:
    return {"token_ids": list(range(1, 30)), "sampling_params": {"max_tokens": 2}, **fields}


GENERATE = [
    Case("no tokens", {"sampling_params": {}}, 400, "token_ids"),
    Case("empty tokens", tokens(token_ids=[]), 400, "token_ids"),
    Case("negative token", tokens(token_ids=[1, -5]), 400, "token_ids"),
    Case("token outside the vocabulary", tokens(token_ids=[10_000_000]), 400, "vocabulary"),
    Case("token beyond 64 bit", tokens(token_ids=[2**70]), 400, "token_ids"),
    Case("no sampling", {"token_ids": [1]}, 400, "sampling_params"),
    Case("too long", tokens(token_ids=[1] * 100_000), 400, "length"),
    Case("overlap", tokens(features=features((1, 4), (3, 4))), 400, "globally non-overlapping"),
    Case("outside", tokens(features=features((20, 40))), 400, "within the token_ids"),
    Case("negative offset", tokens(features=features((-1, 4))), 400, "offset"),
    Case("unequal", tokens(features=features((1, 4), kwargs_data={"image": []})), 400, "length"),
    Case(
        "not base64",
        tokens(features=features((1, 4), kwargs_data={"image": ["@@@"]})),
        400,
        "base64",
    ),
    Case(
        "not an item",
        tokens(features=features((1, 4), kwargs_data={"image": ["kA=="]})),
        400,
        "item",
    ),
    Case(
        "empty item",
        tokens(features=features((1, 4), kwargs_data={"image": ["gA=="]})),
        400,
        "item",
    ),
    Case(
        "item without its fields",
        tokens(
            features=features(
                (1, 4), kwargs_data={"image": ["gaF4gqRkYXRhAaVmaWVsZJKnYmF0Y2hlZIA="]}
            )
        ),
        400,
        "",
    ),
    Case("unknown model", tokens(model="gpt-9"), 404, "model"),
    Case("content parts", tokens(content_parts=[]), 400, "content_parts"),
    Case("priority", tokens(priority=3), 400, "priority"),
    Case(
        "bad words", tokens(sampling_params={"bad_words": ["x"]}), 400, "sampling_params.bad_words"
    ),
    Case("salt", tokens(cache_salt="a@b"), 400, "cache_salt"),
]


@pytest.mark.parametrize("case", GENERATE, ids=lambda case: case.name)
@pytest.mark.parametrize("role", ["all", "prefill_decode", "prefill"])
def test_generate_on_a_worker(fleet: Fleet, http: httpx.Client, case: Case, role: str) -> None:
    worker = getattr(fleet, role)
    response = http.post(f"{worker.http}/inference/v1/generate", json=case.body)
    check(response, case)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions"], ids=["chat", "completions"]
)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"\xff\xfe\x00", b'{"messages": [' + b"[" * 50_000]
)
def test_what_is_not_json(fleet: Fleet, http: httpx.Client, path: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = http.post(f"{fleet.url()}{path}", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


@pytest.mark.parametrize("server", ["coordinator", "render", "all"])
def test_a_body_of_fifty_megabytes(fleet: Fleet, http: httpx.Client, server: str) -> None:
    target = {
        "coordinator": f"{fleet.url()}/v1/chat/completions",
        "render": f"{fleet.render.http}/v1/chat/completions/render",
        "all": f"{fleet.all.http}/v1/nothing",
    }[server]
    body = good(user="x" * 50_000_000)
    response = http.post(target, json=body)
    if server == "all":  # workers take larger bodies: pixels may come inline
        assert response.status_code == 404
        return
    assert response.status_code == 413
    assert response.json()["error"]["param"] == "body"


def test_a_host_that_does_not_exist_is_unprocessable(fleet: Fleet, http: httpx.Client) -> None:
    body = with_url("http://no-such-host.invalid/a.png")
    response = http.post(f"{fleet.url()}/v1/chat/completions", json=body)
    assert 400 <= response.status_code < 500, response.text
    assert "image" in response.text or "url" in response.text


def test_nobody_is_connected_to_for_a_private_address(fleet: Fleet, http: httpx.Client) -> None:
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.3)
        port = trap.getsockname()[1]
        body = with_url(f"http://127.0.0.1:{port}/a.png")
        response = http.post(f"{fleet.url()}/v1/chat/completions", json=body)
        assert response.status_code == 400
        with pytest.raises(TimeoutError):
            trap.accept()


def test_literal_placeholders_in_text_stay_text(fleet: Fleet, http: httpx.Client) -> None:
    for prompt in ("<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|> What is this?"):
        for images in ((), PICTURE.images):
            body = good(messages=[message(prompt, images)])
            response = http.post(f"{fleet.url()}/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text


def test_client_transfer_params_are_dropped(fleet: Fleet, http: httpx.Client) -> None:
    url = f"{fleet.url()}/v1/chat/completions"
    params: dict[str, Any] = {
        "ec_transfer_params": {"ec_items": [{"mm_hash": "x", "peer_host": "10.0.0.1"}]},
        "kv_transfer_params": {"triptych_kv": {"source": "x"}},
    }
    response = http.post(url, json=good(**params))
    assert response.status_code == 200, response.text
    assert response.json()["choices"] == http.post(url, json=good()).json()["choices"]


def test_client_transfer_params_beyond_64_bit_are_no_500(fleet: Fleet, http: httpx.Client) -> None:
    body = good(kv_transfer_params={"big": 2**70}, ec_transfer_params={"big": [2**80]})
    response = http.post(f"{fleet.url()}/v1/chat/completions", json=body)
    assert response.status_code in (200, 400), response.text


def test_no_log_holds_a_picture_or_a_trace(fleet: Fleet) -> None:
    for process in fleet.processes.all:
        written = process.output()
        assert "base64," not in written, process.name
        assert "Traceback" not in written, process.name


def test_every_server_is_alive_after_all_this(fleet: Fleet, http: httpx.Client) -> None:
    for process in fleet.processes.all:
        assert process.running, process.name
        assert http.get(f"{process.http}/health").status_code == 200, process.name
    answers = [
        http.post(f"{fleet.url(topology)}/v1/chat/completions", json=good()).json()
        for topology in TOPOLOGIES
    ]
    words = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert words[0]
    assert words == [words[0]] * len(TOPOLOGIES)
