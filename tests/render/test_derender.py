"""Tokens back to text, by an object per choice and over the stateless contract."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from protocol.errors import InvalidRequest
from protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateResponse,
    Logprobs,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from protocol.openai import (
    ChatCompletionRequest,
    ChatDerenderRequest,
    CompletionDerenderRequest,
    CompletionRequest,
)
from protocol.rpc import TokenDelta
from render.derender import HfDerenderer
from render.derender_http import DerenderService

TEXT = "a red circle, 日本語 and a blue square"


@pytest.fixture(scope="module")
def derenderer(qwen3_vl: Path) -> HfDerenderer:
    return HfDerenderer(str(qwen3_vl))


@pytest.fixture(scope="module")
def service(derenderer: HfDerenderer) -> DerenderService:
    return DerenderService(derenderer, "tiny", 2048)


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[], **fields)


def deltas(ids: list[int], cuts: list[int], **last: Any) -> list[TokenDelta]:
    """The tokens in pieces, the last of which ends the choice."""
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    parts = [ids[a:b] for a, b in itertools.pairwise(edges)] or [[]]
    return [TokenDelta(token_ids=part) for part in parts[:-1]] + [
        TokenDelta(token_ids=parts[-1], finish_reason="stop", **last)
    ]


def test_it_loads_neither_transformers_nor_torch() -> None:
    script = (
        "import sys, render.derender;"
        "print([m for m in ('torch', 'transformers', 'PIL', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[]"


@given(cuts=st.lists(st.integers(0, 100), max_size=10))
def test_any_cut_of_the_tokens_gives_the_text(
    derenderer: HfDerenderer, tokenizer: Tokenizer, cuts: list[int]
) -> None:
    ids = [*tokenizer.encode(TEXT).ids, tokenizer.token_to_id("<|im_end|>")]
    choice = derenderer.chat(request(), [1, 2])
    out = [choice.push(delta) for delta in deltas(ids, cuts)]
    assert "".join(one.content for one in out) == TEXT
    assert [token for one in out for token in one.token_ids] == ids
    assert [one.finish_reason for one in out][-1] == "stop"


@given(cuts=st.lists(st.integers(0, 100), max_size=10), include=st.booleans())
def test_a_stop_string_cuts_the_text_and_aborts(
    derenderer: HfDerenderer, tokenizer: Tokenizer, cuts: list[int], include: bool
) -> None:
    ids = tokenizer.encode(TEXT).ids
    asked = request(stop=["blue", "never"], include_stop_str_in_output=include)
    choice = derenderer.chat(asked, [])
    out = []
    for delta in deltas(ids, cuts):
        out.append(choice.push(delta))
        if out[-1].finish_reason:
            break
    text = TEXT[: TEXT.index("blue") + (4 if include else 0)]
    assert "".join(one.content for one in out) == text
    assert (out[-1].finish_reason, out[-1].stop_reason) == ("stop", "blue")
    assert out[-1].stopped == (len(out) < len(deltas(ids, cuts)))


def test_a_stop_string_is_not_looked_for_before_min_tokens(
    derenderer: HfDerenderer, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("red red red").ids
    choice = derenderer.chat(request(stop="red", min_tokens=2), [])
    out = [choice.push(TokenDelta(token_ids=[token])) for token in ids]
    assert "".join(one.content for one in out).startswith("red")


def test_special_tokens_are_shown_if_wanted(derenderer: HfDerenderer, tokenizer: Tokenizer) -> None:
    start = tokenizer.token_to_id("<|im_start|>")
    shown = derenderer.chat(request(skip_special_tokens=False), [])
    assert shown.push(TokenDelta(token_ids=[start])).content == "<|im_start|>"
    hidden = derenderer.chat(request(), [])
    assert hidden.push(TokenDelta(token_ids=[start])).content == ""


def test_the_stop_token_is_no_text_even_if_special_tokens_are(
    derenderer: HfDerenderer, tokenizer: Tokenizer
) -> None:
    end = tokenizer.token_to_id("<|im_end|>")
    delta = TokenDelta(token_ids=[end], finish_reason="stop")
    assert derenderer.chat(request(skip_special_tokens=False), []).push(delta).content == ""
    kept = request(skip_special_tokens=False, include_stop_str_in_output=True)
    assert derenderer.chat(kept, []).push(delta).content == "<|im_end|>"


def test_text_held_for_a_stop_string_comes_at_the_end(
    derenderer: HfDerenderer, tokenizer: Tokenizer
) -> None:
    choice = derenderer.chat(request(stop=["ab END"]), [])
    first = choice.push(TokenDelta(token_ids=tokenizer.encode("x ab").ids))
    last = choice.push(TokenDelta(finish_reason="length"))
    assert (first.content, last.content, last.finish_reason) == ("x ", "ab", "length")


def test_logprobs_have_text_and_bytes(derenderer: HfDerenderer, tokenizer: Tokenizer) -> None:
    first, *_ = tokenizer.encode("日").ids
    circle = tokenizer.encode("a circle").ids[1]
    entry = TokenLogprob(circle, -0.5, 1, [TopLogprob(circle, -0.5), TopLogprob(first, -2.0)])
    delta = TokenDelta(token_ids=[circle], logprobs=Logprobs([entry]))
    (found,) = (
        derenderer.chat(request(logprobs=True, top_logprobs=2), []).push(delta).logprobs or []
    )
    assert (found.token, found.bytes) == (" circle", list(b" circle"))
    assert found.top_logprobs[1] == {"token": "\ufffd", "logprob": -2.0, "bytes": [0xE6]}
    assert derenderer.chat(request(), []).push(delta).logprobs is None
    (alone,) = derenderer.chat(request(logprobs=True), []).push(delta).logprobs or []
    assert alone.top_logprobs == []
    (likeliest,) = (
        derenderer.chat(request(logprobs=True, top_logprobs=1), []).push(delta).logprobs or []
    )
    assert [top["logprob"] for top in likeliest.top_logprobs] == [
        max(top["logprob"] for top in found.top_logprobs)
    ]
    completion = CompletionRequest(prompt="x", logprobs=2)
    assert derenderer.completion(completion, []).push(delta).logprobs == [found]


def test_calls_and_reasoning_are_taken_apart(qwen3_vl: Path, tokenizer: Tokenizer) -> None:
    derenderer = HfDerenderer(str(qwen3_vl), reasoning_parser="qwen3", tool_parser="hermes")
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    ids = tokenizer.encode(f"<think>why</think>so{call}{call}").ids
    tools = [{"type": "function", "function": {"name": "f"}}]
    delta = TokenDelta(token_ids=ids, finish_reason="stop")

    done = derenderer.chat(request(tools=tools), []).push(delta)
    assert (done.reasoning, done.content, done.finish_reason) == ("why", "so", "tool_calls")
    assert [call["index"] for call in done.tool_calls if "id" in call] == [0, 1]

    one = derenderer.chat(request(tools=tools, parallel_tool_calls=False), []).push(delta)
    assert {call["index"] for call in one.tool_calls} == {0}

    plain = derenderer.chat(request(include_reasoning=False), []).push(delta)
    assert (plain.reasoning, plain.content, plain.tool_calls) == ("", f"so{call}{call}", [])
    assert plain.finish_reason == "stop"

    service = DerenderService(derenderer, "tiny", 2048)
    whole = ChatDerenderRequest(generate_response=response(ids), chat_request=request(tools=tools))
    message = service.chat(whole).choices[0].message
    assert isinstance(message.tool_calls, list)
    assert [call["function"]["arguments"] for call in message.tool_calls] == ['{"a": 1}'] * 2


# --- the stateless endpoints ---------------------------------------------------------------------


def response(ids: list[int], **fields: Any) -> GenerateResponse:
    choices = [GenerateChoice(index=0, token_ids=ids, finish_reason="stop", **fields)]
    return GenerateResponse(
        request_id="generate-tokens-1", model="m", created=1, usage=Usage(), choices=choices
    )


def test_a_whole_chat_answer(service: DerenderService, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode(TEXT).ids, tokenizer.token_to_id("<|im_end|>")]
    call = ChatDerenderRequest(generate_response=response(ids), prompt_tokens=7)
    answer = service.chat(call)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id == "generate-tokens-1"
    assert answer.usage == Usage.of(7, len(ids))


def test_several_completions_are_one_answer(service: DerenderService, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT).ids
    entry = [TokenLogprob(token, -1.0, 1, [TopLogprob(token, -1.0)]) for token in ids]
    one, two = response(ids), response(ids, logprobs=Logprobs(entry))
    call = CompletionDerenderRequest(generate_responses=[one, two], prompt_tokens=[1, 2])
    answer = service.completion(call)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]
    assert answer.usage == Usage.of(3, 2 * len(ids))


@given(cuts=st.lists(st.integers(0, 100), max_size=10))
def test_a_stream_with_the_state_carried_as_json_is_the_same_text(
    service: DerenderService, tokenizer: Tokenizer, cuts: list[int]
) -> None:
    ids = tokenizer.encode(TEXT).ids
    state, pieces, roles = None, [], []
    for delta in deltas(ids, cuts):
        choice = GenerateChoice(
            index=0, token_ids=delta.token_ids, finish_reason=delta.finish_reason
        )
        body = {
            "stream": True,
            "generate_chunk": GenerateChunk(request_id="g", choices=[choice]),
            "stream_state": state,
            "chat_request": request(stop=["blue"]),
        }
        raw = msgspec.json.encode(body)
        done = service.chat_chunk(msgspec.json.decode(raw, type=ChatDerenderRequest))
        state = done["stream_state"]
        delta_out = done["chunk"].choices[0].delta
        pieces.append(delta_out.content or "")
        roles.append(delta_out.role)
        if done["chunk"].choices[0].finish_reason:
            break
    assert "".join(pieces) == TEXT[: TEXT.index("blue")]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]


def test_a_usage_chunk_keeps_the_state(service: DerenderService) -> None:
    usage = GenerateChunk(request_id="g", usage=Usage.of(3, 4))
    state = {"role_sent": True, "choice": {"x": 1}}
    call = ChatDerenderRequest(
        stream=True, generate_chunk=usage, stream_state=state, prompt_tokens=9
    )
    done = service.chat_chunk(call)
    assert done["stream_state"] == state
    assert done["chunk"].usage == Usage.of(9, 4)
    assert done["chunk"].choices == []


def test_completion_chunks_count_their_offsets(
    service: DerenderService, tokenizer: Tokenizer
) -> None:
    state, offsets = None, []
    for token in tokenizer.encode("a red circle").ids:
        logprobs = Logprobs([TokenLogprob(token, -1.0)])
        choice = GenerateChoice(index=0, token_ids=[token], logprobs=logprobs)
        chunk = GenerateChunk(request_id="g", choices=[choice])
        call = CompletionDerenderRequest(stream=True, generate_chunk=chunk, stream_state=state)
        done = service.completion_chunk(call)
        state = done["stream_state"]
        offsets += done["chunk"].choices[0].logprobs.text_offset
    assert offsets == [0, 1, 5]


@pytest.mark.parametrize(
    "state",
    [{"choice": {}}, {"choice": []}, {"choice": 5},
     {"choice": {"text": {}, "stops": {}, "seen": 0}},
     {"choice": {"text": {"pending": [999], "window": [], "emitted": 0, "strip": False},
                 "stops": {"held": "", "matched": None}, "seen": 0}}],
)  # fmt: skip
def test_a_state_that_is_none_is_a_clients_fault(
    service: DerenderService, state: dict[str, Any]
) -> None:
    choice = GenerateChoice(index=0, token_ids=[1])
    chunk = GenerateChunk(request_id="g", choices=[choice])
    with pytest.raises(InvalidRequest, match="invalid stream_state") as caught:
        service.chat_chunk(
            ChatDerenderRequest(stream=True, generate_chunk=chunk, stream_state=state)
        )
    assert caught.value.param == "stream_state"
    completion = CompletionDerenderRequest(stream=True, generate_chunk=chunk, stream_state=state)
    with pytest.raises(InvalidRequest, match="invalid stream_state"):
        service.completion_chunk(completion)


@pytest.mark.parametrize(
    ("ids", "param"),
    [
        ([], "generate_response.choices[0].token_ids"),
        ([-1], "generate_response.choices[0].token_ids"),
        ([2**40], "generate_response.choices[0].token_ids"),
        ([1] * 3000, "generate_response.choices[0].token_ids"),
    ],
)
def test_bad_tokens_name_their_field(service: DerenderService, ids: list[int], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        service.chat(ChatDerenderRequest(generate_response=response(ids)))
    assert caught.value.param == param


def test_lists_that_are_not_parallel_are_refused(service: DerenderService) -> None:
    call = CompletionDerenderRequest(generate_responses=[response([1])], prompt_tokens=[1, 2])
    with pytest.raises(InvalidRequest, match=r"prompt_tokens length \(2\) must equal"):
        service.completion(call)


def test_two_choices_in_a_chunk_are_refused(service: DerenderService) -> None:
    choices = [GenerateChoice(index=i, token_ids=[1]) for i in range(2)]
    chunk = GenerateChunk(request_id="g", choices=choices)
    with pytest.raises(InvalidRequest, match="at most one choice per chunk"):
        service.chat_chunk(ChatDerenderRequest(stream=True, generate_chunk=chunk))
