"""The environment of serving processes: only settings that are not secret; a file in memory has the others.

``/proc/PID/environ`` shows the environment that a process was started with, for as long as it runs.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from image_service.common.programs.environment import environment_of
from image_service.settings.settings import variables

if TYPE_CHECKING:
    from collections.abc import Mapping


def without_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a serving process is started with."""
    settings = [variable for variable in variables() if not (variable.is_secret or variable.from_file)]
    return environment_of(environ, *(name for variable in settings for name in variable.names))


def write_credentials(environ: Mapping[str, str]) -> int:
    """Return the descriptor of a file in memory with the other variables; the caller closes it."""
    known = without_credentials(environ)
    credentials = {name: text for name, text in environ.items() if name not in known}
    descriptor = os.memfd_create("credentials")
    os.write(descriptor, json.dumps(credentials).encode())
    return descriptor


def read_credentials(descriptor: int) -> dict[str, str]:
    """Return what ``write_credentials`` wrote, perhaps in another process, and close the descriptor."""
    size = os.fstat(descriptor).st_size
    credentials: dict[str, str] = json.loads(os.pread(descriptor, size, 0))  # they share the offset
    os.close(descriptor)
    return credentials
