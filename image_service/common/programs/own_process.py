"""Checks in a Python process of their own, for those that hold the interpreter's lock for long.

While the parser of JSON reads a large document, no other thread runs, so that clients of this process would
wait. The data are passed by a file in memory, and neither they nor an environment are visible to others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

import image_service

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = """\
import sys
from importlib import import_module
root, module, function = sys.argv[1:]
sys.path.insert(0, root)
getattr(import_module(module), function)(sys.stdin.buffer.read())
"""
_ROOT = str(Path(image_service.__file__).parents[1])
_SECONDS = 30.0
_at_once = BoundedSemaphore(2)  # each needs some times the memory of its data


def passes_elsewhere(check: Callable[[bytes], None], data: bytes) -> bool:
    """Return True if a check accepts data; False: it raises, or no process can be started. Blocks.

    Args:
        check: a function of a module that needs the standard library alone.
    """
    try:
        descriptor = os.memfd_create("data")
    except OSError:
        return False
    try:
        with _at_once, open(descriptor, "r+b", buffering=0, closefd=False) as file:
            position = 0
            while position < len(data):  # one write takes at most 2 GiB
                position += file.write(memoryview(data)[position:]) or 0
            file.seek(0)
            done = subprocess.run(  # noqa: S603 - the arguments are ours
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, check.__module__, check.__qualname__],
                stdin=descriptor,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        os.close(descriptor)
    return done.returncode == 0
