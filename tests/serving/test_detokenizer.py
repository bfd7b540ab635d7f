"""Text as it comes: whole characters at once, nothing finished held back, stop strings cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from serving.detokenizer import Detokenizer, StopStrings
from tests.render import checkpoints

TEXT = st.text(st.sampled_from("ab é日😀 \n<\u200d"), max_size=20) | st.text(max_size=20)


KINDS = ["byte level", "byte fallback", "other decoder"]


@pytest.fixture(scope="session", params=KINDS)
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of either kind of decoder."""
    path = tmp_path_factory.mktemp("tokenizer")
    fallback = request.param == "byte fallback"
    make = checkpoints.sentencepiece_like if fallback else checkpoints.byte_level
    make(path, ["<s>", "</s>"], ["<think>"])
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    if request.param == "other decoder":  # one that no table can be made for
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return tokenizer


@given(text=TEXT)
def test_token_by_token_gives_the_text(tokens: Tokenizer, text: str) -> None:
    prompt = tokens.encode("x", add_special_tokens=False).ids
    answer = tokens.encode(text, add_special_tokens=False).ids
    ids = prompt + answer
    detokenizer = Detokenizer(tokens, prompt)
    pieces = [detokenizer.push([token]) for token in answer]
    expected = tokens.decode(ids).removeprefix(tokens.decode(prompt))
    assert "".join(pieces) + detokenizer.finish() == expected
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(text=TEXT, cut=st.integers(0, 60))
def test_any_cut_gives_the_same_text(tokens: Tokenizer, text: str, cut: int) -> None:
    ids = tokens.encode(text, add_special_tokens=False).ids
    whole, parts = Detokenizer(tokens), Detokenizer(tokens)
    assert parts.push(ids[:cut]) + parts.push(ids[cut:]) == whole.push(ids)


@given(text=TEXT)
def test_the_state_can_be_carried_by_the_caller(tokens: Tokenizer, text: str) -> None:
    ids = tokens.encode(text, add_special_tokens=False).ids
    live = Detokenizer(tokens)
    state = live.state()
    for token in ids:
        carried = Detokenizer(tokens)
        carried.restore(state)
        assert carried.push([token]) == live.push([token])
        state = carried.state()
        assert state == live.state()


def test_finished_text_before_an_incomplete_character_is_emitted(tokens: Tokenizer) -> None:
    ids = tokens.encode("ok 日", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokens, tokens.encode("x", add_special_tokens=False).ids)
    assert detokenizer.push(ids[:-1]).endswith("ok ")


def test_an_incomplete_character_at_the_end_is_dropped(tokens: Tokenizer) -> None:
    ids = tokens.encode("日", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokens)
    assert (detokenizer.push(ids[:-1]) + detokenizer.finish()).strip() == ""


def test_a_broken_sequence_does_not_hold_back_what_follows(tokens: Tokenizer) -> None:
    broken = tokens.encode("日", add_special_tokens=False).ids[:-1]
    after = tokens.encode("fine", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokens)
    text = "".join(detokenizer.push([token]) for token in [*broken, *after])
    assert text.endswith("fine")


def test_special_tokens_are_left_out_unless_wanted(tokens: Tokenizer) -> None:
    end = tokens.token_to_id("</s>")
    think = tokens.token_to_id("<think>")
    assert Detokenizer(tokens).push([think, end]) == "<think>"
    assert Detokenizer(tokens, skip_special_tokens=False).push([think, end]) == "<think></s>"


def test_ids_beyond_the_vocabulary_are_no_text(tokens: Tokenizer) -> None:
    assert Detokenizer(tokens).push([2**31]) == ""


def test_a_long_text_costs_a_constant_window(tokens: Tokenizer) -> None:
    ids = tokens.encode("a red circle ", add_special_tokens=False).ids * 50
    detokenizer = Detokenizer(tokens)
    for token in ids:
        detokenizer.push([token])
        assert len(detokenizer.state()["window"]) < 40


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"pending": "x", "window": [], "emitted": 0},
        {"pending": 10**12, "window": [], "emitted": 0},
        {"pending": [0, 0, 0, 0], "window": [], "emitted": 0},
        {"pending": [], "window": ["a"], "emitted": 0},
        {"pending": [], "window": [1] * 1000, "emitted": 0},
        {"pending": [], "window": [], "emitted": -1},
    ],
)
def test_a_state_that_is_none_is_refused(tokens: Tokenizer, state: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Detokenizer(tokens).restore(state)


LETTERS = st.text("abc", max_size=12)


@given(
    pieces=st.lists(LETTERS, max_size=6),
    stop=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
)
def test_stop_strings_cut_where_the_whole_text_says(
    pieces: list[str], stop: list[str], include: bool
) -> None:
    """However the text is cut, what comes out is the text before the stop that completes first."""
    stops = StopStrings(stop, include)
    out = "".join(stops.push(piece) for piece in pieces) + stops.finish()
    text = "".join(pieces)
    if stops.matched is None:
        assert out == text
        assert not any(s in text for s in stop)
    else:
        end = out if include else out + stops.matched
        assert text.startswith(end)
        assert not any(s in end[:-1] for s in stop)


def test_text_that_cannot_begin_a_stop_string_is_not_held_back() -> None:
    stops = StopStrings(["END"])
    assert stops.push("the E") == "the "
    assert stops.push("nd") == "End"
    assert stops.push("EN") == ""
    assert stops.push("D!") == ""
    assert stops.matched == "END"


def test_a_matched_stop_ends_the_text() -> None:
    stops = StopStrings(["x"])
    assert stops.push("axb") == "a"
    assert stops.push("more") == ""
    assert stops.finish() == ""


def test_the_state_of_stops_can_be_carried() -> None:
    first, second = StopStrings(["END"]), StopStrings(["END"])
    first.push("EN")
    second.restore(first.state())
    second.push("D")
    assert second.matched == "END"
