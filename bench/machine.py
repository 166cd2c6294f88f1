"""What a run was measured on."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import timeit
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography.hazmat.backends.openssl import backend

from bench.servers import program, trusting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from bench.servers import Server

_CPU_MODEL = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


def describe(directory: Path) -> dict[str, str]:
    """Name what figures depend on.

    Args:
        directory: where the data is.

    Returns:
        values by name, all for people.
    """
    cpu = _CPU_MODEL.search(Path("/proc/cpuinfo").read_text())
    return {
        "CPU": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()}, {_loop_ms():.0f} ms for a loop of a million turns",
        "OpenSSL": f"{backend.openssl_version_text()} (image-service)",
        "nginx": _version("nginx", "-V", r"nginx/(\S+)[^$]*?with (OpenSSL \S+)"),
        "wrk": _version("wrk", "-v", r"^wrk (\S+)"),
        "TCP congestion control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "file system of the data": file_system(directory),
        "load average at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _loop_ms() -> float:
    """How fast this Python is here and now: builds differ by half, and a busy host takes as much again."""
    return min(timeit.repeat("for _ in range(1_000_000): pass", number=1, repeat=5)) * 1000


def file_system(path: Path) -> str:
    """Type of the file system that a path is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [(len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(found)[1]


def negotiated(servers: Sequence[Server]) -> str:
    """TLS version and cipher that each server agrees on with a client of the usual defaults."""
    return "; ".join(
        f"{server.name} {_agreed(server.urls['https'])}" for server in servers if "https" in server.urls
    )


def _agreed(url: str) -> str:
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 443)
    with socket.create_connection(address) as plain, _shaken(plain) as secure:
        cipher, version, _bits = secure.cipher() or ("", "", 0)
        return f"{version} {cipher}"


def _shaken(plain: socket.socket) -> ssl.SSLSocket:
    return trusting().wrap_socket(plain)


def _version(name: str, option: str, pattern: str) -> str:
    """The version that a program tells, be it on standard output or elsewhere, and with whatever status."""
    try:
        told = subprocess.run([program(name), option], capture_output=True, text=True, check=False)
    except SystemExit:
        return "not installed"
    found = re.search(pattern, told.stdout + told.stderr)
    return ", ".join(found.groups()) if found else "unknown"
