"""The reference's environment: where it is, what stands in for its version, what stops it."""

from __future__ import annotations

import sys
import time
import zipfile
from pathlib import Path

import pytest

from interop import environment


def test_it_lies_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.folder() == tmp_path / "triptych" / "vllm-0.32.0"


def test_a_finished_environment_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment.folder().mkdir(parents=True)
    (environment.folder() / "complete").touch()
    assert environment.get().name == "vllm"


def test_the_stub_has_a_version_and_no_modules(tmp_path: Path) -> None:
    with zipfile.ZipFile(environment._stub(tmp_path)) as wheel:
        names = wheel.namelist()
        metadata = wheel.read("vllm-0.32.0+cpu.dist-info/METADATA").decode()
    assert all(name.startswith("vllm-0.32.0+cpu.dist-info/") for name in names)
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata


def test_a_step_that_fails_tells_its_last_line_and_the_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('first'); raise SystemExit('no such wheel')"]
    with pytest.raises(environment.CannotBuild, match=r"no such wheel .*install\.log"):
        environment._run(command, tmp_path, time.monotonic() + 60)
    assert "first" in (tmp_path / "install.log").read_text()


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(environment.CannotBuild, match="took too long"):
        environment._run(command, tmp_path, time.monotonic() + 0.5)


def test_requirements_leave_torch_to_us() -> None:
    printed = "torch\ttorch==2.13.0+cpu\nnumpy\tnumpy\ntorchvision\ttorchvision\nnoise\n"
    assert environment._requirements(printed) == ["numpy"]
