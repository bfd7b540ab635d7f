"""What travels where: pixels by handle to encode, never to prefill; the contract over HTTP."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import tokenizers

from deploy.model_source import DEMO_DIRECTORY
from examples.renderer_api_client import data_url, run
from protocol.generate import GenerateRequest
from protocol.rpc import PREFILL
from protocol.transfer import parse_ec_params
from tests.cluster.asking import chat, png, unseen
from tests.cluster.fleet import MODEL, Fleet
from tests.cluster.processes import ServerProcess

TEXT_OF = tokenizers.Tokenizer.from_file(str(DEMO_DIRECTORY / "tokenizer.json"))


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60.0) as made:
        yield made


def answered(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def total(processes: tuple[ServerProcess, ...], sample: str) -> float:
    return sum(process.metrics().get(sample, 0.0) for process in processes)


def generate(http: httpx.Client, worker: ServerProcess, body: dict[str, Any]) -> httpx.Response:
    return http.post(f"{worker.http}/inference/v1/generate", json=body)


@pytest.fixture(scope="module")
def rendered(fleet: Fleet, http: httpx.Client) -> dict[str, Any]:
    """A drawing as the render server answers it, and what the coordinator says of it."""
    body: dict[str, Any] = chat(unseen("describe", 1, seed=31)[0])
    rendered: dict[str, Any] = answered(
        http.post(f"{fleet.render.http}/v1/chat/completions/render", json=body)
    )
    return rendered | {"expected": said(fleet, http, body)}


def said(fleet: Fleet, http: httpx.Client, body: dict[str, Any]) -> str:
    """What the coordinator answers: the right words, as other tests find."""
    answer = answered(http.post(f"{fleet.url()}/v1/chat/completions", json=body))
    words: str = answer["choices"][0]["message"]["content"]
    assert words
    return words


def leg(rendered: dict[str, Any], *columns: str, **fields: Any) -> dict[str, Any]:
    """A generate request with some columns of the rendered features."""
    features = {name: rendered["features"][name] for name in ("mm_hashes", "mm_placeholders")}
    features |= {name: rendered["features"][name] for name in columns}
    return {
        "token_ids": rendered["token_ids"],
        "features": features,
        "sampling_params": {"max_tokens": 64, "temperature": 0},
        **fields,
    }


def text(response: Any) -> str:
    tokens = response["choices"][0]["token_ids"]
    return str(TEXT_OF.decode(tokens, skip_special_tokens=True)).strip()


# --- through the coordinator -----------------------------------------------------------------


def test_prefill_is_sent_metadata_and_descriptors_but_no_pixels(
    fleet: Fleet, http: httpx.Client
) -> None:
    before = len(fleet.recorder.requests(PREFILL.name))
    for example in unseen("which", 3, images=3, seed=32):
        answered(http.post(f"{fleet.url()}/v1/chat/completions", json=chat(example)))
    recorded = fleet.recorder.requests(PREFILL.name)
    assert len(recorded) - before == 3
    for raw in recorded:
        request = msgspec.msgpack.decode(raw, type=GenerateRequest)
        if request.features is None:
            continue
        assert request.features.kwargs_data is None
        assert request.features.kwargs_handles is None
        hashes = {item.mm_hash for item in request.features.items()}
        assert all(item.metadata for item in request.features.items())
        assert request.ec_transfer_params is not None
        assert parse_ec_params(request.ec_transfer_params).items.keys() == hashes
        assert b"pixel_values" not in raw
        assert len(raw) < 20_000


def test_encode_fetches_the_pixels_by_handle(fleet: Fleet, http: httpx.Client) -> None:
    handle = 'triptych_worker_encoder_input_bytes_total{source="handle"}'
    inline = 'triptych_worker_encoder_input_bytes_total{source="inline"}'
    before = total(fleet.encode, handle), total(fleet.encode, inline)
    example = unseen("describe", 1, seed=33)[0]
    answered(http.post(f"{fleet.url()}/v1/chat/completions", json=chat(example)))
    grown = total(fleet.encode, handle) - before[0]
    width, height = example.images[0].size
    assert grown > width * height * 3 / 2
    assert total(fleet.encode, inline) == before[1]


def test_the_same_picture_is_encoded_once(fleet: Fleet, http: httpx.Client) -> None:
    example = unseen("describe", 1, seed=34)[0]
    doubled = example._replace(images=example.images * 3)
    encoded = "triptych_worker_encoded_items_total"
    before = total(fleet.encode, encoded)
    answered(http.post(f"{fleet.url()}/v1/chat/completions", json=chat(doubled)))
    answered(http.post(f"{fleet.url()}/v1/chat/completions", json=chat(example)))
    assert total(fleet.encode, encoded) - before == 1


def test_a_request_without_a_picture_never_reaches_encode(fleet: Fleet, http: httpx.Client) -> None:
    calls = [process.metrics() for process in fleet.encode]
    example = unseen("text", 1, seed=35)[0]
    answered(http.post(f"{fleet.url()}/v1/chat/completions", json=chat(example)))
    name = 'triptych_worker_requests_total{call="encode",outcome="ok"}'
    assert [m.get(name) for m in calls] == [p.metrics().get(name) for p in fleet.encode]


# --- over HTTP, as the contract has it -------------------------------------------------------


def test_render_answers_inline_with_parallel_columns(rendered: dict[str, Any]) -> None:
    features = rendered["features"]
    lengths = {name: len(features[name]["image"]) for name in features if features[name]}
    assert lengths == {"mm_hashes": 1, "mm_placeholders": 1, "kwargs_data": 1, "mm_metadata": 1}
    assert len(features["kwargs_data"]["image"][0]) > 10 * len(features["mm_metadata"]["image"][0])


def test_encode_takes_pixels_inline_and_prefill_takes_its_answer(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    inline = 'triptych_worker_encoder_input_bytes_total{source="inline"}'
    before = total(fleet.encode, inline)
    example = unseen("describe", 1, seed=36)[0]
    fresh = answered(
        http.post(f"{fleet.render.http}/v1/chat/completions/render", json=chat(example))
    )
    encoded = answered(
        generate(
            http, fleet.encode[0], leg(fresh, "kwargs_data", sampling_params={"max_tokens": 1})
        )
    )
    assert encoded["choices"][0]["token_ids"] == []
    assert encoded["choices"][0]["finish_reason"] == "stop"
    assert encoded["usage"]["completion_tokens"] == 0
    assert total(fleet.encode, inline) > before
    params = encoded["ec_transfer_params"]
    assert [set(item) >= {"mm_hash", "peer_host"} for item in params["ec_items"]] == [True]

    answer = answered(
        generate(http, fleet.prefill_decode, leg(fresh, "mm_metadata", ec_transfer_params=params))
    )
    assert text(answer) == said(fleet, http, chat(example))


def test_metadata_without_ec_transfer_params_is_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    absent: list[dict[str, Any]] = [
        {},
        {"ec_transfer_params": None},
        {"ec_transfer_params": {}},
    ]
    for params in absent:
        response = generate(http, fleet.prefill_decode, leg(rendered, "mm_metadata", **params))
        assert response.status_code == 400
        assert "metadata-only multimodal items require ec_transfer_params" in response.text


def test_items_without_anything_are_refused(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    response = generate(http, fleet.prefill_decode, leg(rendered))
    assert response.status_code == 400, response.text
    strange = {"ec_items": [{"mm_hash": "of-another-item", "peer_host": "127.0.0.1"}]}
    response = generate(http, fleet.prefill_decode, leg(rendered, ec_transfer_params=strange))
    assert response.status_code == 400, response.text


def test_a_legacy_client_may_send_pixels_to_prefill(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    for columns in (("kwargs_data",), ("kwargs_data", "mm_metadata")):
        answer = answered(generate(http, fleet.prefill_decode, leg(rendered, *columns)))
        assert text(answer) == rendered["expected"]


def test_a_single_client_may_forward_the_whole_render_answer(
    fleet: Fleet, http: httpx.Client, rendered: dict[str, Any]
) -> None:
    whole = {name: value for name, value in rendered.items() if name != "expected"}
    for worker in (fleet.all, fleet.prefill_decode):
        assert text(answered(generate(http, worker, whole))) == rendered["expected"]


def test_a_forged_descriptor_is_refused(fleet: Fleet, http: httpx.Client) -> None:
    """Of an item that the worker has not seen: one that it holds it need not fetch."""
    body = chat(unseen("describe", 1, seed=38)[0])
    rendered = answered(http.post(f"{fleet.render.http}/v1/chat/completions/render", json=body))
    encoded = answered(generate(http, fleet.encode[0], leg(rendered, "kwargs_data")))
    genuine = encoded["ec_transfer_params"]["ec_items"][0]
    for change in ({"peer_host": "10.1.2.3"}, {"peer_port": 1}, {"mac": "00" * 32}, {"mac": ""}):
        forged = {"ec_items": [copy.deepcopy(genuine) | change]}
        response = generate(
            http, fleet.prefill_decode, leg(rendered, "mm_metadata", ec_transfer_params=forged)
        )
        assert 400 <= response.status_code < 500, (change, response.text)


def test_the_documents_client_runs_unchanged(fleet: Fleet, tmp_path: Path) -> None:
    example = unseen("describe", 1, seed=37)[0]
    picture = tmp_path / "drawing.png"
    picture.write_bytes(png(example.images[0]))
    answer = run(
        fleet.render.http,
        fleet.encode[1].http,
        fleet.prefill_decode.http,
        MODEL,
        data_url(picture),
    )
    tokens = answer["choices"][0]["token_ids"]
    assert tokens
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    # The document's request samples at temperature 1: what it says is of the right kind.
    words = set(text(answer).replace(",", "").split())
    assert words & {"red", "green", "blue", "yellow", "purple", "black"}
    assert words & {"circle", "square", "triangle"}
