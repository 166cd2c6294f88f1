"""The environment of serving processes: credentials and contents of files reach them in a file in memory.

``/proc/PID/environ`` shows the environment that a process was started with, for as long as it runs.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from image_service.settings.settings import variables

if TYPE_CHECKING:
    from collections.abc import Mapping


def without_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a serving process is started with."""
    return {name: text for name, text in environ.items() if not _holds_credentials(name)}


def write_credentials(environ: Mapping[str, str]) -> int:
    """Return the descriptor of a file in memory with the other variables; the caller closes it."""
    credentials = {name: text for name, text in environ.items() if _holds_credentials(name)}
    descriptor = os.memfd_create("credentials")
    os.write(descriptor, json.dumps(credentials).encode())
    return descriptor


def read_credentials(descriptor: int) -> dict[str, str]:
    """Return what ``write_credentials`` wrote, perhaps in another process, and close the descriptor."""
    size = os.fstat(descriptor).st_size
    credentials: dict[str, str] = json.loads(os.pread(descriptor, size, 0))  # they share the offset
    os.close(descriptor)
    return credentials


def _holds_credentials(name: str) -> bool:
    """Return True for settings that are secret or may be in files, and for proxies, which may be secret."""
    is_setting = any(
        name in variable.names for variable in variables() if variable.is_secret or variable.from_file
    )
    return is_setting or name.lower().endswith("_proxy")
