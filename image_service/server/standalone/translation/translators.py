"""Programs that translate what people write to what machines read, in the sandbox."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import attrs

from image_service.common.programs.interruptible import run_interruptibly
from image_service.common.programs.sandbox import ResourceLimits
from image_service.core.errors import InvalidParameter

if TYPE_CHECKING:
    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.programs.program import ProgramResult

_LIMITS = ResourceLimits(file_bytes=0, cpu_seconds=20, address_space_bytes=4 * 1024**3)
_WALL_SECONDS = 60.0
_MAX_FAULT = 500
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']*'")
_PLACE = re.compile(r"\bline (\d+) col(?:umn)? (\d+)")


@attrs.frozen
class Translator:
    """A program that reads standard input and writes standard output.

    Args:
        command: its name, found in PATH, and its arguments.
        missing: what is said where it is not installed: how it is done without it.
    """

    command: tuple[str, ...]
    missing: str

    def run(self, content: bytes, interruption: Interruption) -> ProgramResult:
        """Translate content; blocks its thread.

        Raises:
            InvalidParameter: the program is not installed.
            Unavailable: it cannot be run, or takes too long.
            Interrupted: the service stops.
        """
        if shutil.which(self.command[0]) is None:
            raise InvalidParameter(self.missing)
        return run_interruptibly(
            self.command,
            interruption,
            stdin=content,
            limits=_LIMITS,
            wall_seconds=_WALL_SECONDS,
        )

    def fault(self, result: ProgramResult, message: str) -> str:
        """Return what the program says is wrong, without what it quotes, which may be secret."""
        if result.status < 0:
            return f"{self.command[0]} was ended by signal {-result.status}"
        told = _PLACE.sub(r"line \1, column \2", _QUOTED.sub("…", message))
        return "".join(filter(str.isprintable, told))[:_MAX_FAULT] or "it does not say why"
