"""What is made of files, and made anew once they have changed: certificates do while the service runs."""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from twisted.logger import Logger

from image_service.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")
_State: TypeAlias = "tuple[tuple[int, ...] | None, ...]"

LOOK_SECONDS = 1.0


class Reloaded(Generic[T]):
    """Keeps what the files make, and looks after them when it is asked for, at most once a second.

    Files that make nothing, because somebody is in the middle of replacing them or has made a mistake, leave
    what was made before in force. They are tried again each time, and complained of once. Several threads may
    ask for it: at worst two of them make the same.

    Args:
        files: what it is made of. Links are followed, so that a change of a link counts.
        make: makes it; raises ConfigurationError where the files are no good.
        seconds: the clock.

    Raises:
        ConfigurationError: the files are no good at the start.
    """

    _log = Logger()

    def __init__(
        self, files: Sequence[Path], make: Callable[[], T], seconds: Callable[[], float] = monotonic
    ) -> None:
        self._files = files
        self._make = make
        self._seconds = seconds
        self._looked_at = seconds()
        self._state = self._look()
        self._made = make()
        self._fault = ""

    def get(self) -> T:
        """Give what the files make, or made when they last were any good."""
        now = self._seconds()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._renew()
        return self._made

    def _renew(self) -> None:
        state = self._look()  # before the files are read: what changes meanwhile is seen the next time
        if state == self._state:
            self._fault = ""
            return
        try:
            self._made = self._make()
        except ConfigurationError as error:
            self._complain(error.detail)
        else:
            self._state, self._fault = state, ""
            self._log.info("read anew: {files}", files=self._names)

    def _complain(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            self._log.error("{fault}; what was read before stays in force", fault=fault, files=self._names)

    def _look(self) -> _State:
        return tuple(map(_state_of, self._files))

    @property
    def _names(self) -> str:
        return ", ".join(map(str, self._files))


def _state_of(file: Path) -> tuple[int, ...] | None:
    """What differs once a file has other content; None: it is not there."""
    try:
        found = os.stat(file)  # noqa: PTH116 - as quick as it can be
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
