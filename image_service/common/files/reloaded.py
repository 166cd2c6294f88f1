"""Objects made of files, and made again when those change: certificates do while the service runs."""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from twisted.logger import Logger

from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")
_State: TypeAlias = "tuple[tuple[int, ...] | None, ...]"

CHECK_SECONDS = 1.0

_in_use: WeakSet[Reloaded[Any]] = WeakSet()


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
        _in_use.add(self)

    def get(self) -> T:
        """Return the object made of the files when they could last be used."""
        now = self._seconds()
        if now - self._checked_at < CHECK_SECONDS:
            return self._made
        self._checked_at = now
        if not self.has_changed:
            self._fault = ""
            return self._made
        try:
            self.prepare()()
        except ConfigurationError as error:
            if error.detail != self._fault:
                self._fault = error.detail
                self._log.error(
                    "cannot reload {files}, keeping the previous content: {fault}",
                    fault=error.detail,
                    files=self.names,
                )
        return self._made

    def prepare(self) -> Callable[[], None]:
        """Make the object of the files as they are now; return the function that replaces the cached one.

        Raises:
            ConfigurationError: the files cannot be used; the cached object stays.
        """
        state = self._read_state()  # before the files are read: a change meanwhile is seen at the next check
        made = self._make()

        def replace() -> None:
            if state != self._state:
                self._log.info("reloaded {files}", files=self.names)
            self._made, self._state, self._fault = made, state, ""

        return replace

    @property
    def has_changed(self) -> bool:
        """True if the files differ from those of the cached object."""
        return self._read_state() != self._state

    @property
    def names(self) -> str:
        """The paths of the files."""
        return ", ".join(map(str, self._files))

    def _read_state(self) -> _State:
        """Return device, inode, time and size of each file; None: there is no file."""

        def state_of(file: Path) -> tuple[int, ...] | None:
            try:
                found = os.stat(file)  # noqa: PTH116 - as quick as it can be
            except OSError:
                return None
            return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

        return tuple(map(state_of, self._files))


def reloaded_file(path: Path, read: Callable[[Path], T]) -> Reloaded[T]:
    """Return the object that is read from a file.

    Args:
        read: reads it; raises OSError, or ValueError with one argument per fault.

    Raises:
        ConfigurationError: the file cannot be used at the start.
    """

    def make() -> T:
        try:
            return read(path)
        except OSError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        except ValueError as error:
            raise ConfigurationError(f"{path}: {'; '.join(map(str, error.args))}") from None

    return Reloaded([path], make)


def prepare_changed() -> Callable[[], list[str]]:
    """Prepare each object in use whose files have changed; return the function that replaces them all.

    That returns the names of the changed files.

    Raises:
        ConfigurationError: files cannot be used; names all faults. Every cached object stays.
    """
    changed = [each for each in _in_use if each.has_changed]
    replacements, faults = [], []
    for each in changed:
        try:
            replacements.append(each.prepare())
        except ConfigurationError as error:
            faults.append(error.detail)
    if faults:
        raise ConfigurationError("\n".join(sorted(set(faults))))

    def replace_all() -> list[str]:
        for replace in replacements:
            replace()
        return sorted({each.names for each in changed})

    return replace_all
