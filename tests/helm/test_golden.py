"""The main combinations, word for word; UPDATE_GOLDEN=1 in the environment writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helm.combinations import COMBINATIONS, GOLDEN
from tests.helm.rendering import render_text

FOLDER = Path(__file__).parent / "golden"
_CHECKSUM = re.compile(r"(checksum/[a-z]+: )[0-9a-f]{64}")


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    texts = render_text(COMBINATIONS[name])
    texts.pop("monitoring/dashboard.yaml", None)  # files/dashboard.json, as it is
    whole = "".join(f"# {path}\n{text.strip()}\n\n" for path, text in texts.items())
    whole = _CHECKSUM.sub(r"\1(checksum)", whole).rstrip() + "\n"
    file = FOLDER / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(whole)
    assert file.read_text() == whole
