"""Objects made of files, and made again when those change: certificates do while the service runs."""

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

CHECK_SECONDS = 1.0


class Reloaded(Generic[T]):
    """Caches an object made of files; ``get`` checks them for changes at most once a second.

    If changed files cannot be used, because they are being replaced or are wrong, the previous version stays.
    They are then tried again at each check, and one error is logged. ``get`` may be called by several
    threads: at worst two of them reload.

    Args:
        files: links are followed, so that a change of a link is a change.
        make: makes the object; raises ConfigurationError if the files cannot be used.

    Raises:
        ConfigurationError: the files cannot be used at the start.
    """

    _log = Logger()

    def __init__(
        self, files: Sequence[Path], make: Callable[[], T], seconds: Callable[[], float] = monotonic
    ) -> None:
        self._files = files
        self._make = make
        self._seconds = seconds
        self._checked_at = seconds()
        self._state = self._read_state()
        self._made = make()
        self._fault = ""

    def get(self) -> T:
        """Return the object made of the files when they could last be used."""
        now = self._seconds()
        if now - self._checked_at < CHECK_SECONDS:
            return self._made
        self._checked_at = now
        state = self._read_state()  # before the files are read: a change meanwhile is seen at the next check
        if state == self._state:
            self._fault = ""
            return self._made
        names = ", ".join(map(str, self._files))
        try:
            self._made = self._make()
        except ConfigurationError as error:
            if error.detail != self._fault:
                self._fault = error.detail
                self._log.error(
                    "cannot reload {files}, keeping the previous content: {fault}",
                    fault=error.detail,
                    files=names,
                )
        else:
            self._state, self._fault = state, ""
            self._log.info("reloaded {files}", files=names)
        return self._made

    def _read_state(self) -> _State:
        """Return device, inode, time and size of each file; None: there is no file."""

        def state_of(file: Path) -> tuple[int, ...] | None:
            try:
                found = os.stat(file)  # noqa: PTH116 - as quick as it can be
            except OSError:
                return None
            return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

        return tuple(map(state_of, self._files))
