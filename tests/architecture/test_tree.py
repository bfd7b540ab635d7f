"""The tree keeps its rules: sizes, mirrored tests, imports of heavy libraries, no local paths."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "protocol",
    "telemetry",
    "serving",
    "ec_connector",
    "render",
    "workers",
    "coordinator",
    "deploy",
)

MAX_LINES = 400

LONG: dict[str, str] = {}
"""Files that may be longer, each with its reason."""

UNMIRRORED: dict[str, str] = {}
"""Modules without a test file of their own, each with the place of their tests."""

MAY_IMPORT = {
    "protocol": {"protocol"},
    "telemetry": {"protocol", "telemetry"},
    "serving": {"protocol", "telemetry", "serving"},
    "ec_connector": {"protocol", "telemetry", "ec_connector"},
    "render": {"protocol", "telemetry", "serving", "ec_connector", "render"},
    "workers": {"protocol", "telemetry", "serving", "ec_connector", "workers"},
    "coordinator": {"protocol", "telemetry", "serving", "coordinator"},
    "deploy": set(PACKAGES),
}
"""The table of docs/architecture.md."""


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def modules() -> list[Path]:
    return tracked(
        *(f"{package}/**/*.py" for package in PACKAGES), *(f"{p}/*.py" for p in PACKAGES)
    )


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path, *, at_import: bool = False) -> set[str]:
    """Top-level names that a module imports, anywhere or only while it is being imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if at_import:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            ):
                node.body = [ast.Pass()]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_no_file_is_longer_than_its_budget() -> None:
    lengths = {
        name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in tracked("*.py")
    }
    over = {
        file: lines for file, lines in lengths.items() if lines > MAX_LINES and file not in LONG
    }
    assert not over, f"split, or list with a reason: {over}"


def test_the_lists_of_exceptions_name_files_that_need_them() -> None:
    for file in LONG:
        assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) > MAX_LINES, file
    for file in UNMIRRORED:
        assert (ROOT / file).is_file(), file
        assert not mirrored(ROOT / file), f"{file} has a test file now"


def mirrored(path: Path) -> bool:
    """Whether a module has a test file of its own: `a/b.py` -> `tests/a/test_b.py`."""
    relative = path.relative_to(ROOT)
    package = ROOT / "tests" / relative.parent
    exact = package / f"test_{relative.stem}.py"
    return exact.is_file() or any(package.glob(f"test_{relative.stem}_*.py"))


def test_each_module_has_a_test_file_or_is_listed() -> None:
    missing = [
        name(path)
        for path in modules()
        if path.name not in ("__init__.py", "__main__.py")
        and not mirrored(path)
        and name(path) not in UNMIRRORED
    ]
    assert not missing, f"{len(missing)} without tests: {missing}"


def test_test_files_are_of_modules_that_exist() -> None:
    strays = []
    for package in PACKAGES:
        for path in tracked(f"tests/{package}/**/test_*.py", f"tests/{package}/test_*.py"):
            relative = path.relative_to(ROOT / "tests")
            stem = relative.stem.removeprefix("test_")
            parts = stem.split("_")
            names = {"_".join(parts[:count]) for count in range(1, len(parts) + 1)}
            folder = ROOT / relative.parent
            if not any((folder / n).is_dir() or any(folder.glob(f"{n}*.py")) for n in names):
                strays.append(name(path))
    assert not strays


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = {
        name(path): bad
        for path in tracked(f"{package}/*.py", f"{package}/**/*.py")
        if (bad := (imported(path) & set(PACKAGES)) - MAY_IMPORT[package])
    }
    assert not wrong


def test_ray_is_imported_in_deploy_alone() -> None:
    assert not [
        name(path)
        for path in modules()
        if "ray" in imported(path) and not name(path).startswith("deploy/")
    ]


@pytest.mark.parametrize("package", ["protocol", "telemetry", "serving", "coordinator"])
def test_light_packages_never_import_torch_or_transformers(package: str) -> None:
    heavy = {"torch", "transformers", "torchvision", "ray", "vllm", "nixl", "ucxx", "ucp"}
    assert not {
        name(path): bad
        for path in tracked(f"{package}/*.py", f"{package}/**/*.py")
        if (bad := imported(path) & heavy)
    }


def test_torch_enters_the_ec_connector_in_adapters_alone() -> None:
    torchy = [
        name(path)
        for path in tracked("ec_connector/*.py", "ec_connector/**/*.py")
        if "torch" in imported(path, at_import=True)
    ]
    assert all("torch_adapter" in file or "vllm_plugin" in file for file in torchy), torchy


def test_no_file_names_a_path_or_a_host_of_one_machine() -> None:
    pattern = re.compile(
        r"(?:^|[^\w.-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me/\w+|Us" + r"ers/\w+|opt/py" + r"pi)/"
    )
    found = []
    for path in tracked():
        if path.suffix in {".safetensors", ".png", ".jpg", ".json", ".lock"}:
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name(path)}:{number}")
    assert not found


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert not [name(path) for path in modules() if path.name in drawers]


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")
    found = [
        f"{name(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if later.search(line) and "protocol/errors.py" not in name(path)
    ]
    assert not found
