"""The Dockerfiles, without Docker: linted, and their steps tried where they can be."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.helm.combinations import COMBINATIONS
from tests.helm.dockerfile import Instruction, lint, parse
from tests.helm.rendering import ROOT, main_container, pods, render

FOLDER = ROOT / "deploy" / "docker"
FILES = sorted(FOLDER.glob("Dockerfile.*"))


def runs(path: Path) -> list[Instruction]:
    return [instruction for instruction in parse(path) if instruction.name == "RUN"]


def last_stage(path: Path) -> list[Instruction]:
    instructions = parse(path)
    last = max(instruction.stage for instruction in instructions)
    return [instruction for instruction in instructions if instruction.stage == last]


def test_there_is_one_for_each_kind_of_image() -> None:
    assert [path.name for path in FILES] == ["Dockerfile.cpu", "Dockerfile.cuda", "Dockerfile.vllm"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(path: Path) -> None:
    assert lint(parse(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_multi_stage_and_runs_as_the_user_of_the_chart(path: Path) -> None:
    instructions = parse(path)
    assert max(instruction.stage for instruction in instructions) == 1
    user = next(i.text for i in last_stage(path) if i.name == "USER")
    for _, pod in pods(render(COMBINATIONS["standalone-default"])):
        security = pod["spec"]["securityContext"]
        assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_entry_point_is_what_the_chart_starts(path: Path) -> None:
    (entry,) = [json.loads(i.text) for i in last_stage(path) if i.name == "ENTRYPOINT"]
    started = {
        main_container(pod)["command"][0]
        for name, pod in pods(render(COMBINATIONS["standalone-default"]))
        if name != "triptych-test"
    }
    assert {entry[0]} == started


def test_the_builder_gets_the_packages_and_nothing_else() -> None:
    """Every top-level package of the wheel, and no tests or chart."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    project = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^packages = \[(.*)\]$", project.split("[tool.hatch")[1], re.MULTILINE)[
        :1
    ]
    packages = re.findall(r'"(\w+)"', listed)
    assert set(packages) <= set(kept)
    copied = {"pyproject.toml", "README.md", "LICENSE", "requirements"}
    assert set(kept) == {*packages, *copied}
    assert not any(fnmatch.fnmatch("tests", pattern) for pattern in kept)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, by the vLLM image's own build step in a copy of what the builder gets."""
    source = tmp_path_factory.mktemp("src")
    wheels = tmp_path_factory.mktemp("wheels")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            one = ROOT / line[1:]
            if one.is_dir():
                shutil.copytree(
                    one,
                    source / one.name,
                    ignore=shutil.ignore_patterns("__pycache__", "docker", "kubernetes"),
                )
            else:
                shutil.copy(one, source)
    step = runs(FOLDER / "Dockerfile.vllm")[0].text.replace("/wheels", str(wheels))
    assert step.startswith("pip wheel ")
    command = step.replace("pip ", f"{sys.executable} -m pip --disable-pip-version-check ", 1)
    done = subprocess.run(
        ["bash", "-euc", command], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = wheels.glob("triptych-*.whl")
    return wheel


def test_the_build_step_makes_a_wheel_with_packages_and_demo_model(built: Path) -> None:
    names = zipfile.ZipFile(built).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {
        "protocol", "telemetry", "serving", "ec_connector", "render", "workers", "coordinator",
        "deploy",
    }  # fmt: skip
    assert "deploy/demo_model/model.safetensors" in names
    assert not any("/docker/" in name or "/kubernetes/" in name for name in names)


def test_the_entry_point_starts_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    """The wheel in a new venv; what it depends on is lent by ours."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    done = subprocess.run(
        [python, "-m", "pip", "install", "--no-cache-dir", "--no-deps", "--quiet", built],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lent = sysconfig.get_paths()["purelib"]
    # After our own packages, and without the .pth file of the editable installation there.
    (packages / "lent.pth").write_text(f"import sys; sys.path.append({lent!r})\n")
    triptych = tmp_path / "venv" / "bin" / "triptych"
    shown = subprocess.run(
        [triptych, "worker", "--help"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "--role" in shown.stdout
    where = subprocess.run(
        [python, "-c", "import deploy; print(deploy.__file__)"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert str(tmp_path) in where.stdout


@pytest.mark.parametrize("path", FILES[:2], ids=lambda path: path.name)
def test_the_install_step_resolves(path: Path, built: Path) -> None:
    """The step's own arguments, with the wheel for `.`, and nothing installed in the end."""
    step = runs(path)[1].text
    arguments = step.removeprefix("pip ").replace("--no-cache-dir ", "").split()
    extras = arguments.pop().strip('"').removeprefix(".")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--dry-run", "--quiet", "--report", "-",
         f"triptych{extras} @ {built.as_uri()}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    new = {item["metadata"]["name"] for item in json.loads(done.stdout)["install"]}
    assert not any(name.startswith("torch") for name in new), "another torch than the constraints'"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_user_is_made_as_the_step_says(path: Path, tmp_path: Path) -> None:
    """groupadd and useradd, on files of a root of their own."""
    if shutil.which("useradd") is None:
        pytest.skip("no useradd here")
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    step = runs(path)[-1].text
    commands = re.findall(r"(?:groupadd|useradd) [^&|;]*", step)
    assert len(commands) == 2
    for command in commands:
        tool, _, arguments = command.partition(" ")
        done = subprocess.run(
            [tool, "--prefix", str(tmp_path), *arguments.split()],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "triptych:x:10001:10001" in (tmp_path / "etc" / "passwd").read_text()


BAD = """\
FROM python
MAINTAINER somebody
RUN apt-get install wget
RUN pip install requests && cd /tmp
ADD . /src
WORKDIR src
CMD triptych serve
USER root
"""


def test_the_linter_finds_what_it_should(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(BAD)
    found = {line.split()[1] for line in lint(parse(tmp_path / "Dockerfile"))}
    assert found >= {
        "DL3000", "DL3002", "DL3003", "DL3006", "DL3008", "DL3009", "DL3013", "DL3014", "DL3015",
        "DL3020", "DL3025", "DL3042", "DL3059", "DL4000",
    }  # fmt: skip
