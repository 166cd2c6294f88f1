"""The machine of a run."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography.hazmat.backends.openssl import backend

from bench.servers import CHECKOUT, LeftOut, program
from image_service.common.http.tls import client_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.servers import Server

_CODE = (
    "image_service",
    "bench",
    ":!bench/results",
    ":!bench/performance.template",
    "tests/jobs/noisy_tenants.py",
    "tests/jobs/running_role.py",
    "tests/jobs/tenant_clients.py",
    "tests/toolkit/coreos_disk.py",
)
_CPU_MODEL = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


def describe(directory: Path) -> dict[str, str]:
    """Return what figures depend on, by name; `directory` is that of the data."""
    cpu = _CPU_MODEL.search(Path("/proc/cpuinfo").read_text())
    return {
        "CPU": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
        "OpenSSL": f"{backend.openssl_version_text()} (image-service)",
        "nginx": _version("nginx", "-V", r"nginx/(\S+)[^$]*?with (OpenSSL \S+)"),
        "wrk": _version("wrk", "-v", r"^wrk (\S+)"),
        "TCP congestion control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "file system of the data": file_system(directory),
    }


def code_commit() -> str:
    """Return the last commit that changed the measured code, with "+" if it has changes since."""
    commit, changes = _git("log", "-1", "--format=%h", "--abbrev=8"), _git("status", "--porcelain")
    return f"{commit or 'no commit'}{'+' if changes else ''}"


def file_system(path: Path) -> str:
    """Return the type of the file system of a path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [(len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(found)[1]


def negotiated(servers: Sequence[Server]) -> str:
    """Return TLS version and cipher of each server with a client of the usual defaults."""
    return "; ".join(
        f"{server.name} {_agreed(server.urls['https'])}" for server in servers if "https" in server.urls
    )


def _agreed(url: str) -> str:
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 443)
    context = client_context(insecure=True)
    with socket.create_connection(address) as plain, context.wrap_socket(plain) as secure:
        cipher, version, _bits = secure.cipher() or ("", "", 0)
        return f"{version} {cipher}"


def _version(name: str, option: str, pattern: str) -> str:
    """Return the version of a program, from standard output or error, with any status."""
    try:
        result = subprocess.run([program(name), option], capture_output=True, text=True, check=False)
    except LeftOut:
        return "not installed"
    found = re.search(pattern, result.stdout + result.stderr)
    return ", ".join(found.groups()) if found else "unknown"


def _git(*arguments: str) -> str:
    """Return what git prints; nothing if it is missing, or this is not a checkout."""
    command = ("git", "-C", str(CHECKOUT), *arguments, "--", *_CODE)
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
