"""What this machine has that decides which transports are worth starting."""

from __future__ import annotations

from pathlib import Path


def has_rdma() -> bool:
    """Whether this machine has an RDMA device."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())
