"""The environment that Mooncake's transfer engine runs in, built once and kept in the cache.

Its wheel needs libraries for RDMA that a machine without it lacks, even to use TCP. Where they are
missing and this is Debian or Ubuntu they are downloaded with apt and unpacked beside the
environment; nothing is installed into the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_WHEEL = "mooncake-transfer-engine-non-cuda"
_LIBRARIES = ("libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200", "libnuma1")
_LIMIT_S = 600


class CannotBuild(Exception):
    """The environment cannot be had here; the message says why."""


@dataclass(frozen=True)
class Environment:
    """A Python with the engine, and what its processes need in their environment."""

    python: str
    variables: dict[str, str]


def get() -> Environment:
    """The environment, built if it is not there.

    Raises:
        CannotBuild: no network, no apt, or a wheel for another system.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "triptych" / "mooncake"
    python = folder / "env" / "bin" / "python"
    libraries = folder / "libraries"
    paths = [str(path.parent) for path in libraries.rglob("lib*.so.*")]
    variables = {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(paths))}
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        libraries.mkdir(parents=True)
        _run([sys.executable, "-m", "venv", str(folder / "env")], folder)
        _run([str(python), "-m", "pip", "install", "-q", _WHEEL], folder)
        if shutil.which("apt-get") is not None:
            _run(["apt-get", "-qq", "download", *_LIBRARIES], libraries)
            for package in libraries.glob("*.deb"):
                _run(["dpkg", "-x", str(package), "."], libraries)
        (folder / "complete").touch()
        return get()
    try:
        _run([str(python), "-c", "import mooncake.engine"], folder, variables)
    except CannotBuild:
        (folder / "complete").unlink()  # to be tried again
        raise
    return Environment(str(python), variables)


def _run(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(str(error)) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise CannotBuild(f"{Path(command[0]).name}: {lines[-1]}")
