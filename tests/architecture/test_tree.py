"""The tree keeps its rules: sizes, mirrored tests, imports of heavy libraries, no local paths."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterable
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
"""Of a file of a package."""

MAX_LINES_ELSEWHERE = 450
"""Of tests, benchmarks and examples, where a table of cases may be long."""

LONG: dict[str, str] = {}
"""Files that may be longer, each with its reason."""

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


def budget(path: Path) -> int:
    return MAX_LINES if name(path).split("/")[0] in PACKAGES else MAX_LINES_ELSEWHERE


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_longer_than_its_budget() -> None:
    over = {
        name(path): length(path)
        for path in tracked("*.py")
        if length(path) > budget(path) and name(path) not in LONG
    }
    assert not over, f"split, or list with a reason: {over}"


def test_the_list_of_long_files_names_files_that_are() -> None:
    for file in LONG:
        assert length(ROOT / file) > budget(ROOT / file), file


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(paths: Iterable[Path]) -> set[str]:
    """Dotted names that files import: modules, and what they take from them."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # tables of plug-ins name their modules, "package.module:Class"
                found.add(node.value.partition(":")[0])
    return found


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def has_own_tests(path: Path) -> bool:
    """`a/b.py` in `tests/a/test_b.py`, or in `tests/a/test_b_more.py`."""
    relative = path.relative_to(ROOT)
    return any((ROOT / "tests" / relative.parent).glob(f"test_{relative.stem}*.py"))


def test_each_module_is_reached_by_tests() -> None:
    """Has tests of its own, is imported by a test, or by a module that tests reach."""
    known = {dotted(path): path for path in modules()}
    named = names_in(tracked("tests/*.py", "tests/**/*.py"))
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named |= {found[1] for found in re.finditer(r'"([\w.]+):\w+"', settings)}  # entry points
    reached = {module for module, path in known.items() if module in named or has_own_tests(path)}
    new = set(reached)
    while new:
        new = (names_in(known[module] for module in new) & known.keys()) - reached
        reached |= new
    unreached = [
        name(path)
        for module, path in known.items()
        if module not in reached and path.name not in ("__init__.py", "__main__.py")
    ]
    assert not unreached


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_tests(package: str) -> None:
    assert tracked(f"tests/{package}/test_*.py")


def test_tests_mirror_the_packages() -> None:
    """A folder of tests is of a folder of the tree, or of the whole."""
    whole = {"architecture", "cluster", "integration"}
    folders = {path.parent.relative_to(ROOT / "tests") for path in tracked("tests/**/*.py")}
    strays = [
        folder.as_posix()
        for folder in folders
        if folder.parts and folder.parts[0] not in whole and not (ROOT / folder).is_dir()
    ]
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
    later = re.compile(
        r"(?:\bTO" + r"DO\b|\bFIX" + r"ME\b|\bXX" + r"X\b|raise NotImplemented" + r"Error$)"
    )
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert not found
