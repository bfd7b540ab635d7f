"""Environment variables of a single-machine Ray Serve instance, set before Ray is imported.

Serve reads them at import in each process, and Ray's processes inherit the launcher's. Ports and
directories are our own, so that several instances run side by side.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

from deploy.ports import free_block, free_ports

_INGRESS_PORTS = 64
"""Ports for the HTTP servers of coordinators, those of a rolling update included."""

_LONGEST_STREAM_S = 3600
"""A proxy that was replaced keeps its streams for this long."""


_SOCKET_PATH_LIMIT = 97
"""Longest path of a socket that the HTTP proxy takes."""

_SOCKET_TAIL = len("/triptych-12345678/a.sock") + 57
"""What comes after the temporary directory; Serve adds a directory named by the node's id."""


def temporary_root() -> str:
    """The directory for temporary files, or /tmp where its path is too long for sockets."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + _SOCKET_TAIL <= _SOCKET_PATH_LIMIT else "/tmp"  # noqa: S108 - a fresh directory is made in it


def variables(directory: Path) -> dict[str, str]:
    """Variable -> value.

    Args:
        directory: where the HTTP proxy keeps its files.
    """
    stats, metrics, fallback, fallback_grpc = free_ports(4)
    ingress = free_block(2 * _INGRESS_PORTS)
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        # A token of this instance alone; by default Ray writes one into the home directory.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "a.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(directory / "m.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ingress[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ingress[_INGRESS_PORTS - 1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ingress[_INGRESS_PORTS]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ingress[-1]),
        # The default of 30 s is made for load balancers that poll; it would outlast the 30 s that
        # Serve's shutdown has, and workers would be killed before they have drained.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        # Default 120: a change of the coordinators would cut longer streams of those that stay.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(_LONGEST_STREAM_S),
        # Follows the hard stop by default: an hour without the port of a stopped replica.
        "RAY_SERVE_PORT_QUARANTINE_S": "5",
        # A proxy that died is back in seconds, not half a minute.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        # Default 5: too little for the proxy to start on a busy machine.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        # Ray gives way to everything else by default; here its processes are the service.
        "RAY_worker_niceness": "0",
        # No thread pools larger than the machine in half a dozen processes at once.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
