"""Finding the processes of one instance, and ending those that outlive it.

Ray ends its own processes, but a process whose parent died first (the HTTP proxy of a killed
manager, a media process of a killed replica) stays. All of them inherit a marker in their
environment.
"""

from __future__ import annotations

import contextlib
import os
import secrets

import psutil

MARKER = "TRIPTYCH_INSTANCE"


def new_marker() -> dict[str, str]:
    """A variable that names this instance, for its environment."""
    return {MARKER: secrets.token_hex(16)}


def marked(value: str) -> list[psutil.Process]:
    """Running processes of the instance, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid != os.getpid()
                and process.environ().get(MARKER) == value
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def end(value: str, grace_s: float) -> list[str]:
    """Wait for the instance's processes, and kill those that still run after `grace_s`.

    Returns:
        the command lines of those that were killed.
    """
    _, alive = psutil.wait_procs(marked(value), timeout=grace_s)
    killed = []
    for process in {*alive, *marked(value)}:
        with contextlib.suppress(psutil.Error):
            killed.append(" ".join(process.cmdline())[:120])
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return killed
