"""The workspace of one call: its private directory, its limits, its programs and its output."""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.common.concurrency.writeback import written_back
from image_service.common.programs.dependencies import Dependency
from image_service.common.programs.sandbox import ResourceLimits, run_sandboxed
from image_service.core.errors import MissingDependency, NoRoom, TimedOut
from image_service.toolkit.workspace import output
from image_service.toolkit.workspace.endings import ProgramWatch, failure_of, memory_exceeded
from image_service.toolkit.workspace.ledger import Ledger
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.private_directory import PrivateDirectory, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from image_service.common.programs.program import ProgramResult
    from image_service.toolkit.workspace.progress import Progress

GIB = 1024 * 1024 * 1024
ADDRESS_SPACE_BYTES = 4 * GIB  # qemu-img's threads need more than 1 GiB under load
_PAUSE_SECONDS = 0.2
_CHECK_SECONDS = 0.1
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSING = "qemu_thread_create: Resource temporarily unavailable"


class Workspace:
    """What one call may use; a context manager that leaves nothing behind.

    Args:
        scratch: directory in which the private directory is made.
        warn: receives a line if programs cannot be isolated.
    """

    def __init__(
        self,
        scratch: Path,
        limits: Limits,
        progress: Progress,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        self.limits = limits
        self.progress = progress
        self._parent = scratch
        self._warn = warn or _ignore
        self._deadline = time.monotonic() + (limits.wall_seconds or math.inf)
        self._checked_at = -math.inf
        self._paced_until = -math.inf
        self._pace_lock = threading.Lock()
        self._names: dict[str, str] = {}  # of private paths, for messages

    def __enter__(self) -> Self:
        """Make the private directory, after the leftovers of killed calls are removed."""
        scratch = self._parent.resolve(strict=True)
        remove_leftovers(scratch)
        self._private = PrivateDirectory(scratch)
        self.directory = self._private.path
        self._names[f"{self.directory}/"] = ""
        self._ledger = Ledger(scratch, self._private.lock)
        self._ledger.add_directory(self.directory)
        return self

    def __exit__(self, *_: object) -> None:
        self._private.remove()

    @property
    def seconds_left(self) -> float:
        """The time until the call's limit; infinite without one."""
        return max(0, self._deadline - time.monotonic())

    def check(self) -> None:
        """Raise TimedOut or NoRoom if a limit is exceeded; called between pieces of long work."""
        now = time.monotonic()
        if now > self._deadline:
            raise TimedOut(f"the call took more than {self.limits.wall_seconds:g} s (--timeout)")
        limit = self.limits.scratch_bytes
        if limit is not None and now >= self._checked_at + _CHECK_SECONDS:
            self._checked_at = now
            if (used := self._ledger.used) > limit:
                raise NoRoom(f"the call has written {used} bytes, more than {limit} (--scratch-bytes)")

    def reserve(self, needed: int, purpose: str, beside: Path | None = None) -> None:
        """Reserve bytes before they are written; what is written counts against what was reserved.

        Args:
            needed: bytes, beside those that were reserved before.
            purpose: what needs them, for the message.
            beside: the output that they are part of; None: they are in the private directory.

        Raises:
            NoRoom: they can never fit; names the bytes.
            UnusableOutput: `beside` has no directory.
        """
        limit = self.limits.scratch_bytes
        taken = max(self._ledger.reserved, self._ledger.used)
        if limit is not None and taken + needed > limit:
            beyond = f" beside {taken} bytes of this call" if taken else ""
            raise NoRoom(f"{purpose} needs {needed} bytes{beyond}, more than {limit} (--scratch-bytes)")
        self._ledger.reserve(needed, purpose, output.directory_of(beside) if beside else self.directory)

    def give_back(self) -> None:
        """Give back what was reserved and is not used now, because files were removed or took less."""
        self._ledger.give_back()

    def name_of(self, path: Path) -> str:
        """Return the name of a file of this call for messages: that of the output that it becomes."""
        return self._names.get(str(path), path.name)

    def pace(self, count: int) -> None:
        """Wait until `count` bytes, which were read or written, are within the rate; and `check`."""
        self.check()
        if self.limits.io_bytes_per_second is None:
            return
        now = time.monotonic()
        with self._pace_lock:  # a digest is made in a thread
            self._paced_until = max(self._paced_until, now) + count / self.limits.io_bytes_per_second
            until = self._paced_until
        while (wait := until - time.monotonic()) > 0:
            time.sleep(min(wait, _PAUSE_SECONDS))
            self.check()

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Let no limit end the block: after one has, what was begun is undone."""
        limits, deadline = self.limits, self._deadline
        self.limits, self._deadline = Limits(), math.inf
        try:
            yield
        finally:
            self.limits, self._deadline = limits, deadline

    @contextmanager
    def output(self, path: Path, *, private: bool = False) -> Iterator[Path]:
        """Yield the path of a new, empty file beside `path`, which then replaces that: synced, by rename.

        It has mode 0600 until then (if `private`, afterwards too), in a private directory. If the block
        fails, `path` stays as it was.

        Raises:
            UnusableOutput: `path` is a symlink, a directory or a device, or nothing can be made beside it.
        """
        output.mode_for(path)
        beside = output.private_directory_beside(path)
        try:
            temporary = beside.path / "image"
            output.create_file(temporary)
            self._names[str(temporary)] = path.name
            if not beside.path.is_relative_to(self.directory):  # else its files are counted already
                self._ledger.add_directory(beside.path)
            with written_back(temporary):
                yield temporary
            self.check()
            output.publish(temporary, path, private=private)
        finally:
            beside.remove()

    def run(  # noqa: PLR0913 - properties of a child process
        self,
        command: Sequence[str | Path],
        *,
        descriptors: Sequence[int] = (),
        writes: Sequence[Path] = (),
        stdin: bytes = b"",
        on_output: Callable[[bytes], None] | None = None,
        accepts: Sequence[int] = (0,),
        file_bytes: int = 0,
        address_space_bytes: int = ADDRESS_SPACE_BYTES,
    ) -> bytes:
        """Run a program without network, within the limits, to its end; return its standard output.

        Args:
            command: program and arguments; images are given as ``/proc/self/fd/N`` of `descriptors`, which
                it inherits, because no other path of the host need be visible to it.
            writes: files, directories or devices outside the private directory that it may write.
            on_output: receives its standard output as it comes (`qemu-img -p`); then b"" is returned.
            accepts: exit statuses that are not failures.
            file_bytes: size of the largest sparse file that it makes: its holes do not count as written.
            address_space_bytes: that it needs, if more than 4 GiB.

        Raises:
            MissingDependency: the program is not installed.
            ConversionFailed: it failed; contains the last lines of its messages.
            TimedOut, NoRoom: it exceeded a limit, and was killed with all its children.
        """
        self.check()
        words = [str(word) for word in command]
        name, program = words[0], Dependency(words[0], words[0], words[0]).find()
        if program is None:
            raise MissingDependency(f"not installed: {name}")
        resources = self._resources(descriptors, file_bytes, address_space_bytes)
        home = str(self.directory)

        def attempt() -> ProgramResult:
            result = run_sandboxed(
                [program, *words[1:]],
                environment={"PATH": _PATH, "HOME": home, "TMPDIR": home, "LC_ALL": "C.UTF-8"},
                limits=resources,
                watch=ProgramWatch(name, self.limits, self.check),
                warn=self._warn_once,
                directory=self.directory,
                writes=[path.absolute() for path in writes],
                descriptors=descriptors,
                stdin=stdin,
                on_output=on_output,
            )
            if result.exceeded_memory:
                raise memory_exceeded(name, self.limits)
            return result

        result = attempt()
        if result.status not in accepts and _PASSING in result.messages:
            result = attempt()
        if result.status in accepts:
            return result.output
        self.check()
        images = {f"/proc/self/fd/{number}": "the image" for number in descriptors}
        raise failure_of(name, result, self.limits, {**self._names, **images})

    def _warn_once(self, line: str) -> None:
        self._warn(line)
        self._warn = _ignore

    def _resources(
        self, descriptors: Sequence[int], file_bytes: int, address_space_bytes: int
    ) -> ResourceLimits:
        limits = self.limits
        largest = None
        if limits.scratch_bytes is not None:
            left = max(0, limits.scratch_bytes - self._ledger.used)
            changed = max(map(_bytes_to_change, descriptors), default=0)
            largest = max(file_bytes, changed + left)
        return ResourceLimits(
            file_bytes=largest,
            cpu_seconds=limits.cpu_seconds,
            address_space_bytes=max(address_space_bytes, 2 * (limits.memory_bytes or 0)),
            memory_bytes=limits.memory_bytes,
            is_yielding=limits.io_bytes_per_second is not None,
        )


def _bytes_to_change(descriptor: int) -> int:
    """Return the size of a file that is open for writing, which a program changes in place."""
    is_writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return os.fstat(descriptor).st_size if is_writable else 0


def _ignore(_line: str) -> None:
    """Do not warn."""
