"""Recorded token streams through both derenderers: at once, token by token, cut at each place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from interop import servers
from interop.ask import ask
from interop.cases import Case
from interop.difference import Answer, Difference
from interop.report import Report
from interop.streams import SETS, TOOLS, Output, StreamSet

CHAT = "/v1/chat/completions/derender"
COMPLETIONS = "/v1/completions/derender"
MAX_MODEL_LEN = 4096
_IN_FLIGHT = 3

NAMES = tuple(f"derender:{one.name.replace(' ', '_')}" for one in SETS)


async def run_set(name: str, command: Path, folder: Path) -> Report:
    """Compare the derenderers of one set of streams.

    Raises:
        StartFailed: a server does not serve it.
    """
    chosen = SETS[NAMES.index(name)]
    stem = name.replace(":", "-")
    model = chosen.checkpoint(folder / stem)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    reference = servers.reference(
        command, model, MAX_MODEL_LEN, chosen.options, folder / f"{stem}.reference.log"
    )
    mine = servers.ours(model, MAX_MODEL_LEN, chosen.config, folder / f"{stem}.ours.log")
    report = Report(name)
    with reference, mine:
        await asyncio.to_thread(mine.wait)
        await asyncio.to_thread(reference.wait)
        async with httpx.AsyncClient(timeout=120.0) as http:
            turn = asyncio.Semaphore(_IN_FLIGHT)

            async def one(case: Case) -> list[Difference]:
                async with turn:
                    answers = [await _asked(http, url, case) for url in (mine.url, reference.url)]
                    return list(compare(*answers))

            listed = list(cases(chosen, tokenizer))
            found = await asyncio.gather(*(one(case) for case in listed))
            for case, differences in zip(listed, found, strict=True):
                report.add(case, differences)
    return report


def cases(chosen: StreamSet, tokenizer: Tokenizer) -> Iterator[Case]:
    """Every answer of a set at once, token by token, cut in two at each place; as completion."""
    number = 0
    end = tokenizer.token_to_id(chosen.special[0])
    assert end is not None
    for output in chosen.outputs:
        ids = tokenizer.encode(output.text, add_special_tokens=False).ids
        if output.finish == "stop":
            ids.append(end)
        common = _request(output, tokenizer)
        cuts = [[ids[:cut], ids[cut:]] for cut in range(1, len(ids))]
        for kind, pieces in [
            ("at once", [ids]),
            ("token by token", [[token] for token in ids]),
            *((f"cut at {len(cut[0])}", cut) for cut in cuts),
        ]:
            body = {**common, "pieces": pieces, "finish": output.finish, "whole": kind == "at once"}
            yield Case(number, kind, CHAT, body)
            number += 1
        for kind, pieces in [("at once", [ids]), ("token by token", [[token] for token in ids])]:
            body = {**common, "pieces": pieces, "finish": output.finish, "whole": kind == "at once"}
            yield Case(number, f"completion {kind}", COMPLETIONS, body)
            number += 1


def _request(output: Output, tokenizer: Tokenizer) -> dict[str, Any]:
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Where?"}],
        **({"tools": TOOLS} if output.tools else {}),
        **output.fields,
    }
    prompt = tokenizer.encode(output.prompt, add_special_tokens=False).ids
    return {"chat_request": request, "prompt_token_ids": prompt}


async def _asked(http: httpx.AsyncClient, url: str, case: Case) -> Answer:
    """What a server makes of a case, its chunks merged; or the first refusal."""
    body = case.body
    chat = case.path == CHAT
    if body["whole"]:
        answer = await ask(http, url + case.path, _whole(body, chat))
        if answer.status != 200:
            return answer
        choice = answer.body["choices"][0]
        told = {**choice.get("message", {}), **choice}
        return Answer(200, _merged([told]))
    state = None
    deltas: list[dict[str, Any]] = []
    for index, ids in enumerate(body["pieces"]):
        last = index == len(body["pieces"]) - 1
        answer = await ask(http, url + case.path, _chunk(body, chat, ids, last, state))
        if answer.status != 200:
            return answer
        state = answer.body["stream_state"]
        choice = answer.body["chunk"]["choices"][0]
        deltas.append({**choice.get("delta", {}), **choice})
    return Answer(200, _merged(deltas))


def _choice(ids: Sequence[int], finish: str | None, logprobs: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0, "token_ids": list(ids), "finish_reason": finish, "stop_reason": None,
    }  # fmt: skip
    if logprobs:
        choice["logprobs"] = {
            "content": [
                {
                    "token_id": token,
                    "logprob": -0.5,
                    "rank": 1,
                    "top_logprobs": [{"token_id": token, "logprob": -0.5, "rank": 1}],
                }
                for token in ids
            ]
        }
    return choice


def _whole(body: dict[str, Any], chat: bool) -> dict[str, Any]:
    choice = _choice(body["pieces"][0], body["finish"], logprobs=not chat)
    response = {"request_id": "r", "choices": [choice]}
    if chat:
        return {
            "generate_response": response,
            "chat_request": body["chat_request"],
            "prompt_token_ids": body["prompt_token_ids"],
        }
    return {
        "generate_responses": [response],
        "completion_request": {"prompt": "x", "logprobs": 1},
        "prompt_token_ids": [body["prompt_token_ids"]],
    }


def _chunk(
    body: dict[str, Any], chat: bool, ids: Sequence[int], last: bool, state: Any
) -> dict[str, Any]:
    choice = _choice(ids, body["finish"] if last else None, logprobs=not chat)
    request: dict[str, Any] = (
        {"chat_request": body["chat_request"]}
        if chat
        else {"completion_request": {"prompt": "x", "logprobs": 1}}
    )
    return {
        "stream": True,
        "generate_chunk": {"request_id": "r", "choices": [choice]},
        "stream_state": state,
        "prompt_token_ids": body["prompt_token_ids"],
        **request,
    }


def _merged(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Chunks, or the one answer, as one: what a client has in the end."""
    out: dict[str, Any] = {"content": "", "reasoning": "", "finish_reason": None}
    calls: dict[int, list[str]] = {}
    logprobs: dict[str, list[Any]] = {}
    for delta in deltas:
        out["content"] += delta.get("content") or delta.get("text") or ""
        out["reasoning"] += delta.get("reasoning") or ""
        out["finish_reason"] = delta.get("finish_reason") or out["finish_reason"]
        for position, call in enumerate(delta.get("tool_calls") or []):
            function = call.get("function") or {}
            held = calls.setdefault(call.get("index", position), ["", ""])
            held[0] += function.get("name") or ""
            held[1] += function.get("arguments") or ""
        for name, values in (delta.get("logprobs") or {}).items():
            logprobs.setdefault(name, []).extend(values or [])
    return {**out, "tool_calls": [calls[index] for index in sorted(calls)], "logprobs": logprobs}


def compare(ours: Answer, theirs: Answer) -> Iterator[Difference]:
    """What differs for the client in the end."""
    if ours.status != theirs.status:
        yield Difference("status", f"{ours.status} {ours.body}", f"{theirs.status} {theirs.body}")
    elif ours.status == 200:
        for name in ours.body:
            if ours.body[name] != theirs.body[name]:
                yield Difference(name, ours.body[name], theirs.body[name])
