"""Requests for both servers: every endpoint and kind, the same for a family and a number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from interop import bad_requests, pictures
from interop.words import TOOLS, answer_call, conversation, sentence, words

CHAT = "/v1/chat/completions/render"
COMPLETIONS = "/v1/completions/render"
RESPONSES = "/v1/responses/render"
MESSAGES = "/v1/messages/render"
MAX_ITEMS = 8
SERVED = "tiny"
"""The model's name."""

Body = dict[str, Any]


class Family(NamedTuple):
    """What requests must know of a family.

    Attributes:
        modalities: `image`, `video`.
        literals: texts that its tokenizer makes a special token of.
        vocabulary: ids below this are in it.
    """

    name: str
    modalities: frozenset[str]
    literals: tuple[str, ...]
    vocabulary: int


class Case(NamedTuple):
    """One request.

    Attributes:
        number: its place in the family's list; `--only` takes it.
        kind: which maker made it.
    """

    number: int
    kind: str
    path: str
    body: Body

    @property
    def headers(self) -> dict[str, str]:
        """A Messages request has its id here alone."""
        return {"X-Request-Id": f"r{self.number}"} if self.path == MESSAGES else {}


Maker = Callable[[random.Random, Family], tuple[str, Body]]


def cases(family: Family, count: int) -> Iterator[Case]:
    """`count` requests: each kind in turn, so that a few are a sample of all."""
    makers = [(name, maker) for name, maker, modality in _MAKERS if modality in _open(family)]
    for number in range(count):
        rng = random.Random(f"{family.name} {number}")
        kind, maker = makers[number % len(makers)]
        path, body = maker(rng, family)
        if path != MESSAGES:  # whose requests have no id of their own
            body = {"request_id": f"r{number}", **body}
        if path == MESSAGES or rng.random() < 0.3:
            body.setdefault("model", SERVED)
        yield Case(number, kind, path, body)


def _open(family: Family) -> frozenset[str]:
    return family.modalities | {""}


def _text(rng: random.Random, _family: Family) -> tuple[str, Body]:
    body: Body = {"messages": [{"role": "user", "content": sentence(rng)}]}
    if rng.random() < 0.4:
        body["messages"].insert(0, {"role": "system", "content": sentence(rng)})
    if rng.random() < 0.3:
        body["return_token_offsets"] = True
    return CHAT, body


def _history(rng: random.Random, _family: Family) -> tuple[str, Body]:
    return CHAT, {"messages": conversation(rng, rng.randint(2, 7))}


def _parts(rng: random.Random, _family: Family) -> tuple[str, Body]:
    parts: list[Any] = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(("text", "text", "input_text", "output_text", "refusal", "str"))
        key = "refusal" if kind == "refusal" else "text"
        text = sentence(rng)
        parts.append(text if kind == "str" else {"type": kind, key: text})
    return CHAT, {"messages": [{"role": "user", "content": parts}]}


def _literals(rng: random.Random, family: Family) -> tuple[str, Body]:
    text = f"{words(rng, 3)} {rng.choice(family.literals)} {words(rng, 2)}"
    return CHAT, {"messages": [{"role": rng.choice(("user", "system")), "content": text}]}


def _images(rng: random.Random, family: Family) -> tuple[str, Body]:
    count = 1 if rng.random() < 0.5 else rng.randint(2, MAX_ITEMS)
    seen: list[str] = []
    parts: list[Body] = []
    for _ in range(count):
        if rng.random() < 0.4:
            parts.append({"type": "text", "text": sentence(rng)})
        again = seen and rng.random() < 0.15
        seen.append(rng.choice(seen) if again else pictures.picture(rng))
        parts.append(_image_part(rng, seen[-1]))
    if rng.random() < 0.8:
        parts.append({"type": "text", "text": sentence(rng)})
    messages: list[Body] = [{"role": "user", "content": parts}]
    if rng.random() < 0.3:
        messages = [*conversation(rng, 3), *messages]
    return CHAT, {"messages": messages}


def _image_part(rng: random.Random, url: str) -> Body:
    match rng.randrange(5):
        case 0:
            return {"image_url": url}
        case 1:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case 2:
            detail = rng.choice(("low", "high", "auto"))
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case _:
            return {"type": "image_url", "image_url": {"url": url}}


def _image_options(rng: random.Random, family: Family) -> tuple[str, Body]:
    """One or two pictures, and what a request may ask about them."""
    path, body = _images(random.Random(rng.random()), family)
    content = body["messages"][-1]["content"]
    body["messages"][-1]["content"] = content[:3]
    match rng.randrange(5):
        case 0:
            for part in content:
                if part.get("type") != "text":
                    part["uuid"] = f"picture-{rng.getrandbits(48):x}"
        case 1:
            body["mm_payload"] = "none"
        case 2:
            body["mm_payload"] = "tensors"
            body["cache_salt"] = words(rng, 1)
        case 3:
            body["return_token_offsets"] = True
        case 4:
            part = {"type": "image_url", "image_url": None, "uuid": f"{rng.getrandbits(48):x}"}
            body["messages"][-1]["content"] = [part, {"type": "text", "text": "?"}]
    return path, body


def _videos(rng: random.Random, _family: Family) -> tuple[str, Body]:
    parts: list[Body] = [
        {"type": "video_url", "video_url": {"url": pictures.clip(rng)}}
        for _ in range(rng.choice((1, 1, 2)))
    ]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(2), _image_part(rng, pictures.picture(rng)))
    parts.append({"type": "text", "text": sentence(rng)})
    return CHAT, {"messages": [{"role": "user", "content": parts}]}


def _tools(rng: random.Random, _family: Family) -> tuple[str, Body]:
    body: Body = {
        "messages": [{"role": "user", "content": sentence(rng)}],
        "tools": rng.sample(TOOLS, rng.randint(1, len(TOOLS))),
    }
    if rng.random() < 0.5:
        body["tool_choice"] = rng.choice(("auto", "none"))
    if rng.random() < 0.6:
        body["messages"] += answer_call(rng)
    if rng.random() < 0.3:
        body["parallel_tool_calls"] = rng.random() < 0.5
    return CHAT, body


def _template(rng: random.Random, _family: Family) -> tuple[str, Body]:
    body: Body = {"messages": conversation(rng, rng.choice((1, 3)))}
    match rng.randrange(7):
        case 0:
            body["add_generation_prompt"] = False
        case 1:
            body["messages"].append({"role": "assistant", "content": sentence(rng)})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        case 2:
            body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
        case 3:
            body["reasoning_effort"] = rng.choice(("none", "low", "high"))
        case 4:
            body["chat_template"] = (
                "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
                "{{ extra | default('-') }}{% if add_generation_prompt %}>{% endif %}"
            )
            body["chat_template_kwargs"] = {"extra": words(rng, 2)}
        case 5:
            body["add_special_tokens"] = True
        case 6:
            body["messages"].append(
                {"role": "assistant", "content": words(rng, 2), "reasoning": sentence(rng)}
            )
            body["messages"].append({"role": "user", "content": words(rng, 3)})
    return CHAT, body


def _sampling_fields(rng: random.Random) -> Body:
    some: Body = {
        "temperature": rng.choice((0, 0.005, 0.7, 1, 1.3)),
        "top_p": rng.choice((0.1, 0.9, 1)),
        "top_k": rng.choice((-1, 0, 1, 40)),
        "min_p": rng.choice((0, 0.05)),
        "presence_penalty": rng.choice((-1.5, 0, 0.5)),
        "frequency_penalty": rng.choice((0, 1.1)),
        "repetition_penalty": rng.choice((1, 1.2)),
        "seed": rng.choice((-1, 0, 17, 2**40)),
        "stop": rng.choice(("\n", ["END", "###"], [])),
        "stop_token_ids": [rng.randrange(100)],
        "ignore_eos": rng.random() < 0.5,
        "max_tokens": rng.choice((1, 15, 16, 17, 100)),
        "min_tokens": rng.choice((0, 1)),
        "include_stop_str_in_output": rng.random() < 0.5,
        "skip_special_tokens": rng.random() < 0.5,
        "spaces_between_special_tokens": rng.random() < 0.5,
        "stream": rng.random() < 0.5,
        "user": words(rng, 1),
    }
    return {name: some[name] for name in rng.sample(sorted(some), rng.randint(1, 6))}


def _sampling(rng: random.Random, _family: Family) -> tuple[str, Body]:
    body: Body = {"messages": conversation(rng, 1), **_sampling_fields(rng)}
    match rng.randrange(6):
        case 0:
            body |= {"logprobs": True, "top_logprobs": rng.choice((0, 3, 20))}
        case 1:
            body |= {"temperature": 0.8, "n": rng.randint(2, 4)}
        case 2:
            body["max_completion_tokens"] = rng.choice((1, 16, 33))
        case 3:
            body |= {"stream": True, "stream_options": {"include_usage": rng.random() < 0.5}}
        case 4:
            body["truncate_prompt_tokens"] = rng.choice((1, 5, 1000))
            body["truncation_side"] = rng.choice(("left", "right"))
        case 5:
            body["kv_transfer_params"] = {"do_remote_decode": True}
            body["ec_transfer_params"] = {"h": {"peer_host": "10.0.0.1"}}
    return CHAT, body


def _features(rng: random.Random, _family: Family) -> tuple[str, Body]:
    """What needs the engine's help: constraints, biases, prompt logprobs, priorities."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    extra: Body = rng.choice((
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "place", "schema": schema}}},
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"regex": "[a-z]+"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function",
                                         "function": {"name": TOOLS[0]["function"]["name"]}}},
        {"logit_bias": {"5": 2.5, "7": -100}},
        {"allowed_token_ids": [1, 2, 3]},
        {"bad_words": ["red"]},
        {"prompt_logprobs": 2},
        {"priority": 3},
    ))  # fmt: skip
    return CHAT, {"messages": conversation(rng, 1), **extra}


def _completions(rng: random.Random, family: Family) -> tuple[str, Body]:
    ids = [rng.randrange(family.vocabulary) for _ in range(rng.randint(1, 12))]
    prompt: Any = rng.choice((
        sentence(rng), [sentence(rng), sentence(rng)], ids, [ids, ids[::-1]], [sentence(rng)],
    ))  # fmt: skip
    body: Body = {"prompt": prompt, **_sampling_fields(rng)}
    match rng.randrange(7):
        case 0:
            body["add_special_tokens"] = False
        case 1:
            body["logprobs"] = rng.choice((0, 3))
        case 2:
            body["return_token_offsets"] = True
        case 3:
            body["truncate_prompt_tokens"] = rng.choice((-1, 1, 4))
        case 4:
            body["echo"] = True
        case 5:
            body |= {"cache_salt": "salt", "priority": 0}
    return COMPLETIONS, body


def _responses(rng: random.Random, family: Family) -> tuple[str, Body]:
    body: Body = {"input": sentence(rng)}
    match rng.randrange(6):
        case 0:
            body["instructions"] = sentence(rng)
        case 1:
            body["input"] = [
                {"role": m["role"], "content": m["content"]} for m in conversation(rng, 3)
            ]
        case 2:
            call = {"type": "function_call", "call_id": "c1", "name": "look_up",
                    "arguments": '{"city": "Paris"}'}  # fmt: skip
            output = {"type": "function_call_output", "call_id": "c1", "output": words(rng, 2)}
            asked = {"role": "user", "content": sentence(rng)}
            body["input"] = [asked, call, output]
            body["tools"] = [{"type": "function", **TOOLS[0]["function"]}]
        case 3:
            thought = {"type": "reasoning", "id": "rs_1", "summary": [],
                       "content": [{"type": "reasoning_text", "text": sentence(rng)}]}  # fmt: skip
            said = {"role": "assistant", "content": words(rng, 2)}
            asked = {"role": "user", "content": sentence(rng)}
            body["input"] = [asked, thought, said, asked]
        case 4:
            body |= {"max_output_tokens": rng.choice((5, 16)), "temperature": 0.5, "top_p": 0.9}
        case 5 if "image" in family.modalities:
            picture = {"type": "input_image", "image_url": pictures.picture(rng), "detail": "auto"}
            text = {"type": "input_text", "text": sentence(rng)}
            body["input"] = [{"role": "user", "content": [picture, text]}]
        case _:
            body["truncation"] = rng.choice(("auto", "disabled"))
    return RESPONSES, body


def _messages(rng: random.Random, family: Family) -> tuple[str, Body]:
    body: Body = {"max_tokens": rng.choice((5, 16, 40)), "messages": conversation(rng, 3, False)}
    match rng.randrange(6):
        case 0:
            body["system"] = sentence(rng)
        case 1:
            body["system"] = [{"type": "text", "text": sentence(rng)} for _ in range(2)]
        case 2:
            call = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"city": "Rome"}}
            result = {"type": "tool_result", "tool_use_id": "t1", "content": words(rng, 2)}
            body["messages"] = [
                {"role": "user", "content": sentence(rng)},
                {"role": "assistant", "content": [{"type": "text", "text": "Well."}, call]},
                {"role": "user", "content": [result]},
            ]
            function = TOOLS[0]["function"]
            body["tools"] = [{"name": function["name"], "description": function["description"],
                              "input_schema": function["parameters"]}]  # fmt: skip
        case 3:
            body |= {"temperature": 0.4, "top_k": 5, "top_p": 0.8, "stop_sequences": ["\n\n"]}
        case 4 if "image" in family.modalities:
            _, _, data = pictures.picture(rng).partition("base64,")
            source = {"type": "base64", "media_type": "image/png", "data": data}
            text = {"type": "text", "text": sentence(rng)}
            body["messages"] = [
                {"role": "user", "content": [{"type": "image", "source": source}, text]}
            ]
        case _:
            body["messages"][-1]["content"] = [{"type": "text", "text": sentence(rng)}]
    return MESSAGES, body


def _tokenize(rng: random.Random, family: Family) -> tuple[str, Body]:
    match rng.randrange(4):
        case 0:
            ids = [rng.randrange(family.vocabulary) for _ in range(rng.randint(0, 9))]
            return "/detokenize", {"tokens": ids}
        case 1:
            return "/tokenize", {"messages": conversation(rng, 3), "return_token_strs": True}
        case _:
            special = rng.random() < 0.5
            return "/tokenize", {"prompt": sentence(rng), "add_special_tokens": special}


def _bad(rng: random.Random, family: Family) -> tuple[str, Body]:
    return bad_requests.pick(rng, family.modalities)


_MAKERS: tuple[tuple[str, Maker, str], ...] = (
    ("text", _text, ""),
    ("images", _images, "image"),
    ("tools", _tools, ""),
    ("completions", _completions, ""),
    ("bad input", _bad, ""),
    ("images", _images, "image"),
    ("template", _template, ""),
    ("history", _history, ""),
    ("image options", _image_options, "image"),
    ("sampling", _sampling, ""),
    ("videos", _videos, "video"),
    ("responses", _responses, ""),
    ("bad input", _bad, ""),
    ("messages", _messages, ""),
    ("images", _images, "image"),
    ("parts", _parts, ""),
    ("literals", _literals, ""),
    ("tokenize", _tokenize, ""),
    ("features", _features, ""),
)
"""Name, maker, and the modality that it needs ("" for none)."""
