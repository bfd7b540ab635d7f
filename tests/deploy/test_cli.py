"""The command line: instant help, one line per error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("serve", "render", "worker", "coordinator", "ec", "version")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    for command in COMMANDS:
        assert command in shown.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    assert CliRunner().invoke(app, [command, "-h"]).exit_code == 0


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys, deploy.cli;"
        "heavy = {'torch', 'transformers', 'ray', 'numpy', 'grpc', 'uvicorn'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert shown.strip() == "[]"


def test_the_launcher_loads_neither_torch_nor_ray_before_it_has_checked_everything() -> None:
    code = (
        "import sys, deploy.launcher;"
        "print(sorted({'torch', 'transformers', 'ray'} & sys.modules.keys()))"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert shown.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--topology", "pd"], "topology: Invalid enum value 'pd': one of epd, e-pd, all"),
        (["serve", "--config", "/no/file"], "/no/file: No such file or directory"),
        (["serve", "./nothing"], "./nothing: no such directory, and not a Hugging Face name"),
        (["serve", "--replicas", "encoder=2"], "--replicas encoder=2: write STAGE=N"),
        (["serve", "--dtype", "int4"], "encode.dtype: Invalid enum value 'int4'"),
        (
            ["worker", "demo", "--role", "encode", "--host", "0.0.0.0", "--port", "0"],
            "listening on 0.0.0.0 needs a cluster token",
        ),
        (["render", "demo", "--max-model-len", "0", "--port", "70000"], "70000 is not a port"),
        (
            ["coordinator", "demo", "--replicas", "cook=http://h:1", "--port", "0"],
            "'cook' is not a role",
        ),
    ],
)
def test_an_error_is_one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("triptych: ")
    assert message in lines[0]


def test_a_wrong_option_is_a_usage_error() -> None:
    assert run("serve", "--prot", "1").returncode == 2
