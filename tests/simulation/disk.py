"""A simulated disk: what is left of files after a power failure.

Files are real. Of a page that was changed since it was last synced, or written back, a power failure leaves
the old content or the new one. Changes of names are kept in their order, up to one of those since the latest
directory was synced. Chance decides which.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

PAGE_BYTES = 4096


class PowerFailure(BaseException):
    """The machine has lost power in the middle of something; no handler of the product knows it."""


@attrs.define(eq=False)
class SimulatedDisk:
    """A directory, and what of it is on the disk.

    Args:
        steps_left: calls and other steps until the power fails.
        trace: one line for each event.
    """

    directory: Path
    chance: Random
    steps_left: float = inf
    trace: list[str] = attrs.field(factory=list)
    _pages: dict[int, bytes] = attrs.field(factory=dict)
    """The content of files on the disk, by inode."""
    _names: list[dict[Path, int]] = attrs.field(factory=lambda: [{}])
    """The inodes that names stood for when a directory was last synced, and after each change since."""
    _opened: dict[int, int] = attrs.field(factory=dict)
    """A descriptor of each inode that was seen, so that none gets the number of another."""
    _left: dict[Path, bytes] = attrs.field(factory=dict)
    """What the latest power failure has left."""
    _times: dict[tuple[int, int], int] = attrs.field(factory=dict)
    _restarts: int = 0

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe what this process syncs, and let the power fail before and after such calls."""
        with ExitStack() as stack:
            for name in ("fsync", "replace", "unlink"):
                call = self._interruptible(name, getattr(os, name))
                stack.enter_context(patch.object(os, name, call))
            yield

    def _interruptible(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def make_call(*args: Any, **kw: Any) -> None:
            self.step()
            names = [Path(arg).name for arg in args if not isinstance(arg, int)]
            self.trace.append(" ".join([name, *names]))
            if name != "fsync":
                call(*args, **kw)
            self._names.append(self._current())
            if name == "fsync":
                self._sync(*args)  # the real disk need not
            self.step()

        return make_call

    def step(self) -> None:
        """Let the power fail, if it is time; from then on nothing can be done until the restart."""
        self.steps_left -= 1
        if self.steps_left == 0:
            self._left = self._survivors()
            left = {path.name: len(content) for path, content in self._left.items()}
            self.trace.append(f"the power fails and leaves {left} (bytes)")
        if self.steps_left <= 0:
            raise PowerFailure

    def sync(self) -> None:
        """Have everything on the disk, as after calls that are not observed, such as SQLite's."""
        self._names = [self._current()]
        self._pages = {inode: self._read(inode) for inode in self._names[0].values()}

    def modified(self, status: os.stat_result) -> int:
        """Return a time for a file that no real clock decides: in place of its modification's."""
        return self._times.setdefault((self._restarts, status.st_ino), 10**18 + len(self._times))

    def write_back(self) -> None:
        """Write some of the changed pages to the disk, as the kernel does when it likes."""
        for inode in self._current().values():
            self._pages[inode] = self._mixed(inode)

    def restart(self) -> None:
        """Start the machine again: the directory has what is left, all of it on the disk."""
        self.steps_left = inf
        self._restarts += 1
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.close()
        for path, content in self._left.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.truncate(len(content))
                for start in range(0, len(content), PAGE_BYTES):
                    if any(page := content[start : start + PAGE_BYTES]):
                        os.pwrite(file.fileno(), page, start)
        self.sync()

    def close(self) -> None:
        """Close the descriptors, and forget everything."""
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()
        self._pages.clear()
        self._names.clear()

    def _current(self) -> dict[Path, int]:
        """Return the inodes of all names, and keep them open."""
        found = {}
        for path in sorted(self.directory.rglob("*")):
            if path.is_file():
                inode = found[path] = path.stat().st_ino
                if inode not in self._opened:
                    self._opened[inode] = os.open(path, os.O_RDONLY)
        return found

    def _read(self, inode: int) -> bytes:
        descriptor = self._opened[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def _sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self._opened:
            self._pages[inode] = self._read(inode)
        else:  # a directory
            del self._names[:-1]

    def _survivors(self) -> dict[Path, bytes]:
        names = self.chance.choice([*self._names, self._current()])
        return {path: self._mixed(inode) for path, inode in names.items()}

    def _mixed(self, inode: int) -> bytes:
        """Return pages of the file, each as it is or as it is on the disk."""
        old, new = self._pages.get(inode, b""), self._read(inode)
        if old == new:
            return new
        size = self.chance.choice((len(old), len(new)))
        pages = []
        for start in range(0, size, PAGE_BYTES):
            choices = [page for text in (old, new) if (page := text[start : start + PAGE_BYTES])]
            pages.append(self.chance.choice(choices or [b""]).ljust(PAGE_BYTES, b"\0"))
        return b"".join(pages)[:size]
