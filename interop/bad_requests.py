"""Requests that a client should not send: what counts is the status and the type of the error."""

from __future__ import annotations

import base64
import random
from typing import Any

_CHAT = "/v1/chat/completions/render"
_COMPLETIONS = "/v1/completions/render"
_HELLO = [{"role": "user", "content": "hello"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def pick(rng: random.Random, modalities: frozenset[str]) -> tuple[str, dict[str, Any]]:
    """One of them."""
    found: list[tuple[str, dict[str, Any]]] = [
        *_ANY,
        *(_IMAGE if "image" in modalities else _NO_IMAGE),
    ]
    path, body = rng.choice(found)
    return path, dict(body)


def _chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return _CHAT, {"messages": _HELLO, **fields}


def _complete(**fields: Any) -> tuple[str, dict[str, Any]]:
    return _COMPLETIONS, {"prompt": "hello", **fields}


def _part(part: Any) -> tuple[str, dict[str, Any]]:
    return _CHAT, {"messages": [{"role": "user", "content": [part]}]}


def _image(url: Any) -> tuple[str, dict[str, Any]]:
    return _part({"type": "image_url", "image_url": {"url": url}})


_ANY: list[tuple[str, dict[str, Any]]] = [
    (_CHAT, {}),
    (_CHAT, {"messages": "hello"}),
    (_CHAT, {"messages": []}),
    (_CHAT, {"messages": [{"content": "no role"}]}),
    (_CHAT, {"messages": [{"role": "user"}]}),
    (_CHAT, {"messages": [{"role": "user", "content": 5}]}),
    (_CHAT, {"messages": [{"role": "user", "content": [5]}]}),
    _part({"type": "hologram", "hologram": "x"}),
    _part({"type": "image"}),
    _part({"type": "text"}),
    _chat(model="no-such-model"),
    _chat(model=""),
    _chat(temperature=-1),
    _chat(temperature=3),
    _chat(temperature="warm"),
    _chat(top_p=0),
    _chat(top_p=1.5),
    _chat(top_k=-5),
    _chat(min_p=2),
    _chat(presence_penalty=3),
    _chat(repetition_penalty=0),
    _chat(n=0),
    _chat(n=2, temperature=0),
    _chat(max_tokens=0),
    _chat(max_tokens=10**6),
    _chat(max_completion_tokens=-1),
    _chat(min_tokens=5, max_tokens=3),
    _chat(stop=[""]),
    _chat(top_logprobs=3),
    _chat(logprobs=True, top_logprobs=100),
    _chat(logprobs=True, top_logprobs=-2),
    _chat(seed=2**70),
    _chat(stream_options={"include_usage": True}),
    _chat(add_generation_prompt=True, continue_final_message=True),
    _chat(chat_template_kwargs={"messages": []}),
    _chat(chat_template="{{ nothing.at.all }}"),
    _chat(chat_template="{% broken"),
    _chat(chat_template="{{ raise_exception('no') }}"),
    _chat(tools=[]),
    _chat(tools=[{"type": "function"}]),
    _chat(tools=[_TOOL], tool_choice="sometimes"),
    _chat(tool_choice="auto"),
    _chat(tool_choice="required"),
    _chat(tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
    _chat(cache_salt=""),
    _chat(cache_salt="a/b"),
    _chat(truncate_prompt_tokens=-2),
    _chat(use_beam_search=True),
    _chat(mm_payload="pictures"),
    _chat(messages=[{"role": "user", "content": "red " * 6000}]),
    _chat(response_format={"type": "poem"}),
    (_CHAT, {"messages": [*_HELLO, {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{broken"}}]}]}),
    _complete(prompt=[]),
    _complete(prompt=""),
    _complete(prompt=[[]]),
    _complete(prompt=[-1]),
    _complete(prompt=[10**7]),
    _complete(prompt=None),
    _complete(prompt=[1, "a"]),
    _complete(max_tokens=0),
    _complete(max_tokens=10**6),
    _complete(logprobs=100),
    _complete(logprobs=-1),
    _complete(temperature=-0.5),
    _complete(use_beam_search=True),
    _complete(truncate_prompt_tokens=0),
    _complete(stream_options={"include_usage": True}),
    (_COMPLETIONS, {}),
    ("/v1/responses/render", {"input": "hi", "previous_response_id": "resp_1"}),
    ("/v1/responses/render", {"input": "hi", "temperature": 9}),
    ("/v1/responses/render", {}),
    ("/v1/messages/render", {"messages": _HELLO}),
    ("/v1/messages/render", {"messages": [], "max_tokens": 5}),
    ("/v1/messages/render", {"messages": [{"role": "robot", "content": "x"}], "max_tokens": 5}),
    ("/tokenize", {}),
    ("/detokenize", {"tokens": [-1]}),
    ("/detokenize", {"tokens": "x"}),
]  # fmt: skip

_IMAGE = [
    _image(""),
    _image("data:image/png;base64,"),
    _image("data:image/png;base64,!!!!"),
    _image("data:image/png;base64," + base64.b64encode(b"not an image").decode()),
    _image("data:image/png,plain"),
    _image("data:nonsense"),
    _image("ftp://example.org/a.png"),
    _image("file:///etc/hostname"),
    _image("http://127.0.0.1:1/a.png"),
    _image("/etc/hostname"),
    _image(7),
    _part({"type": "image_url"}),
    _part({"type": "image_url", "image_url": {}}),
    _part({"type": "image_url", "image_url": None, "uuid": "never-seen"}),
    _part({"type": "image_embeds", "image_embeds": "AAAA"}),
    _part({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}),
]

_NO_IMAGE = [
    _image("data:image/png;base64,AAAA"),
    _part({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
]
