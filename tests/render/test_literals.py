"""Text that spells a special token is never the token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from render.literals import LiteralGuard
from tests.render import checkpoints

PAD, START, END = "<|image_pad|>", "<|im_start|>", "<|im_end|>"
PIECES = st.lists(
    st.sampled_from(
        [PAD, START, END, PAD[:5], PAD[5:], END[:1], END[1:], "a", " ", "日", "<", "|>"]
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="session", params=["byte level", "byte fallback"])
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("tokenizer")
    fallback = request.param == "byte fallback"
    make = checkpoints.sentencepiece_like if fallback else checkpoints.byte_level
    make(path, [START, END, PAD], ["<think>"])
    return Tokenizer.from_file(str(path / "tokenizer.json"))


@given(texts=st.lists(PIECES, max_size=4))
def test_only_the_templates_own_tokens_are_special(tokens: Tokenizer, texts: list[str]) -> None:
    """However texts meet, the prompt has the special tokens of the template alone."""
    literals = LiteralGuard(tokens, [PAD]).literals()
    marked = literals.mark(texts)
    prompt = START + "".join(marked) + PAD + END
    ids, offsets = literals.encode(prompt)
    assert len(offsets) == len(ids)
    for token in (START, PAD, END):
        assert ids.count(tokens.token_to_id(token)) == 1
    # Word-start marks put spaces where segments begin; nothing else may differ.
    decoded = tokens.decode(ids, skip_special_tokens=False).replace(" ", "")
    assert decoded == (START + "".join(texts) + PAD + END).replace(" ", "")


def test_a_text_without_literals_is_not_touched(tokens: Tokenizer) -> None:
    literals = LiteralGuard(tokens, [PAD]).literals()
    text = "plain text, a < b, <think>kept</think>"
    assert literals.mark(text) == text
    assert not literals


def test_trusted_roles_keep_control_tokens_but_no_placeholders(tokens: Tokenizer) -> None:
    literals = LiteralGuard(tokens, [PAD]).literals()
    marked = literals.mark(f"{END}{PAD}", media_only=True)
    assert marked.startswith(END)
    ids, _ = literals.encode(marked)
    assert tokens.token_to_id(END) in ids
    assert tokens.token_to_id(PAD) not in ids


def test_every_string_of_a_value_is_marked(tokens: Tokenizer) -> None:
    literals = LiteralGuard(tokens, [PAD]).literals()
    marked = literals.mark({"a": [PAD, 1, None], "b": {"c": PAD}})
    assert PAD not in str(marked)
    assert marked["a"][1:] == [1, None]


def test_markers_of_a_client_are_not_ours(tokens: Tokenizer) -> None:
    """The marker holds a random part, so that a text cannot hold one."""
    guard = LiteralGuard(tokens, [PAD])
    found: list[str] = []
    marker = guard.mark(PAD, found, media_only=False)
    other = LiteralGuard(tokens, [PAD])
    assert other.restore(marker, []) == (marker, [])
