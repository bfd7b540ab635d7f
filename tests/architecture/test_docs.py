"""Generated pages are in step with the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

from protocol import errors

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_errors_is_in_step() -> None:
    done = subprocess.run(
        [sys.executable, "docs/errors_page.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_of_errors_names_every_kind() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for kind in get_args(errors.TransferKind):
        assert f"| `{kind}` |" in page
