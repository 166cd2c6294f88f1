"""The limits of one call."""

from __future__ import annotations

import attrs


@attrs.frozen
class Limits:
    """What one call may use; None: no limit.

    Args:
        scratch_bytes: all that it writes, unfinished output too.
        cpu_seconds: CPU time of each program.
        io_bytes_per_second: at which it reads and writes images.
        memory_bytes: resident memory of a program and its children.
        wall_seconds: duration of the call.
    """

    scratch_bytes: int | None = None
    cpu_seconds: int | None = None
    io_bytes_per_second: int | None = None
    memory_bytes: int | None = None
    wall_seconds: float | None = None
