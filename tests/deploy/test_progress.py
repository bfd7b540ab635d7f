"""The lines that a person sees while a cluster starts."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.progress import Progress


def test_without_a_terminal_finished_steps_are_lines_and_nothing_else() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=80)) as progress:
        progress.doing("starting Ray")
        progress.done("Ray, no GPUs visible")
        progress.note("encode   2 x CPU [x]")
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert len(lines) == 2
    assert lines[0].startswith("✓")
    assert lines[0].endswith("Ray, no GPUs visible")
    assert lines[1].strip() == "encode   2 x CPU [x]"


def test_it_counts_the_seconds() -> None:
    with Progress(Console(file=io.StringIO())) as progress:
        assert 0 <= progress.elapsed_s < 60
