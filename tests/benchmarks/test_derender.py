"""The derender benchmark compares two ways to one answer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.derender import answers, checkpoint, deltas, derendered, run, text_of
from render.derender import HfDerenderer


def test_every_kind_of_answer_has_what_its_name_says(tmp_path: Path) -> None:
    tokenizer = checkpoint(tmp_path)
    derenderer = HfDerenderer(str(tmp_path), reasoning_parser="qwen3", tool_parser="hermes")
    made = answers(tokenizer, 600)
    assert {len(ids) for ids in made.values()} == {600}
    found = {kind: text_of(derendered(derenderer, deltas(ids, 7))) for kind, ids in made.items()}
    assert [list(map(bool, parts)) for parts in found.values()] == [
        [True, True, True], [False, True, False], [False, False, True],
    ]  # fmt: skip


def test_a_run_measures_both_ways() -> None:
    for one in run(tokens=64, rounds=2):
        assert one.at_once_ms > 0
        assert one.streamed_ms > 0
