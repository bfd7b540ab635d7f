"""The configuration page says what the code does."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from deploy import reference
from deploy.config import ClusterConfig, RenderStage, WorkerStage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_in_step() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), (
        "run python -m deploy.reference docs/configuration.md"
    )


@pytest.mark.parametrize("struct", [ClusterConfig, RenderStage, WorkerStage])
def test_every_key_of_the_cluster_is_described(struct: type[msgspec.Struct]) -> None:
    texts = reference.descriptions(struct)
    assert not [f.name for f in msgspec.structs.fields(struct) if not texts.get(f.name)]


def test_a_key_is_a_row_with_type_default_and_meaning() -> None:
    rows = [line for line in reference.page().splitlines() if line.startswith("| `topology`")]
    assert len(rows) == 1
    assert rows[0].split(" | ")[2] == '`"epd"`'
    assert "prefill and decode in one" in rows[0]


def test_check_fails_on_another_page_and_passes_on_a_written_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["reference", "--check", str(page)])
    assert reference.main() == 1
    assert "is out of date" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["reference", str(page)])
    assert reference.main() == 0
    monkeypatch.setattr(sys, "argv", ["reference", "--check", str(page)])
    assert reference.main() == 0
