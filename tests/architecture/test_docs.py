"""Generated pages are in step with the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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


def test_each_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    listed = [*project["dependencies"], *(entry for extra in extras for entry in extra)]
    names = {re.split(r"[\[<>=!~ ]", entry)[0] for entry in listed} - {"triptych"}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    missing = [name for name in sorted(names) if f"`{name}" not in page and name not in page]
    assert not missing
