"""Text, stop strings and paced events on the HTTP endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from protocol.generate import GenerateRequest, Logprobs, TokenLogprob, TopLogprob
from protocol.rpc import TokenDelta
from protocol.sampling import SamplingParams
from workers.answers import Answer, Pacer
from workers.text_output import ChoiceDelta, TextOutput


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({chr(97 + n): n for n in range(26)}, unk_token="a"))
    made.decoder = decoders.Fuse()
    return made


def ids(text: str) -> list[int]:
    return [ord(char) - 97 for char in text]


def output(
    tokenizer: Tokenizer, stopped: list[bool], mode: str = "text", **params: Any
) -> TextOutput:
    asked = GenerateRequest(
        token_ids=[1],
        sampling_params=SamplingParams(**params),
        output_mode=mode,  # type: ignore[arg-type]
    )
    return TextOutput(asked, tokenizer, lambda: stopped.append(True))


def test_text_is_held_back_while_a_stop_string_may_still_match(tokenizer: Tokenizer) -> None:
    stopped: list[bool] = []
    said = output(tokenizer, stopped, stop="cde")
    assert said.push(TokenDelta(token_ids=ids("abc"))).text == "ab"
    assert said.push(TokenDelta(token_ids=ids("d"))).text == ""
    assert said.push(TokenDelta(token_ids=ids("x"))).text == "cdx"
    assert not stopped
    assert said.push(TokenDelta(token_ids=ids("c"), finish_reason="length")).text == "c"


def test_tokens_after_a_stop_string_are_dropped_and_the_engine_is_told(
    tokenizer: Tokenizer,
) -> None:
    stopped: list[bool] = []
    said = output(tokenizer, stopped, stop=["zz", "cd"])
    entries = Logprobs([TokenLogprob(n, -1.0) for n in ids("abcdef")])
    part = said.push(TokenDelta(token_ids=ids("abcdef"), logprobs=entries))
    assert (part.text, part.token_ids) == ("ab", ids("abcd"))
    assert (part.finish_reason, part.stop_reason) == ("stop", "cd")
    assert part.logprobs is not None
    assert len(part.logprobs.content) == 4
    assert stopped == [True]
    assert said.over


def test_a_stop_string_in_the_last_token_needs_no_stopping(tokenizer: Tokenizer) -> None:
    stopped: list[bool] = []
    said = output(tokenizer, stopped, stop="b", include_stop_str_in_output=True)
    part = said.push(TokenDelta(token_ids=ids("ab"), finish_reason="length"))
    assert (part.text, part.finish_reason, part.stop_reason) == ("ab", "stop", "b")
    assert not stopped


def test_in_token_mode_stop_strings_cut_and_no_text_is_said(tokenizer: Tokenizer) -> None:
    stopped: list[bool] = []
    part = output(tokenizer, stopped, mode="tokens", stop="b").push(
        TokenDelta(token_ids=ids("abc"))
    )
    assert (part.text, part.token_ids, part.stop_reason) == (None, ids("ab"), "b")


def test_logprobs_in_text_mode_name_tokens(tokenizer: Tokenizer) -> None:
    entry = TokenLogprob(1, -0.5, 1, [TopLogprob(1, -0.5, 1), TopLogprob(2, -2.0, 2)])
    part = output(tokenizer, []).push(TokenDelta(token_ids=[1], logprobs=Logprobs([entry])))
    assert part.logprobs is not None
    named = part.logprobs.content[0]
    assert (named.token, named.bytes) == ("b", [98])
    assert [top.token for top in named.top_logprobs] == ["b", "c"]


def test_paced_events_have_the_asked_number_of_tokens() -> None:
    pacer = Pacer(3)

    def push(token: int, finish: Any = None) -> list[int] | None:
        part = pacer.push(0, ChoiceDelta([token], None, None, finish, None))
        return None if part is None else part.token_ids

    assert push(1) == [1], "the first at once"
    assert [push(2), push(3), push(4)] == [None, None, [2, 3, 4]]
    assert [push(5), push(6, "stop")] == [None, [5, 6]]


def test_an_answer_adds_up_deltas_of_its_choices() -> None:
    asked = GenerateRequest(token_ids=[1, 2], sampling_params=SamplingParams(n=2), request_id="r")
    answer = Answer(asked, "m", 7, None, lambda _: None)
    answer.add(TokenDelta(index=1, token_ids=[3]))
    answer.add(TokenDelta(index=0, token_ids=[4], finish_reason="stop", stop_reason=4))
    answer.add(TokenDelta(index=1, token_ids=[5], finish_reason="length"))
    assert answer.add(TokenDelta(index=1, token_ids=[6])) is None, "it is over"
    whole = answer.response()
    assert whole.request_id == "generate-tokens-r"
    assert [choice.token_ids for choice in whole.choices] == [[4], [3, 5]]
    assert [choice.stop_reason for choice in whole.choices] == [4, None]
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 5)
