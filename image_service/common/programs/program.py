"""A program as a child process: started, watched, and ended together with all its children."""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import attrs

from image_service.common.command_line.parser import STATUS_OF_SIGNALS, interrupt_on_signals
from image_service.common.programs.process_tree import signal_tree
from image_service.core.errors import ConversionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_READ_BYTES = 64 * 1024
_MESSAGE_BYTES = 4 * 1024
_OUTPUT_BYTES = 16 * 1024 * 1024
_WATCH_SECONDS = 0.1
_END_SECONDS = 10  # that killed processes have to close the streams


@attrs.frozen
class ProgramResult:
    """How a program ended.

    Args:
        status: exit status; negative: the number of the signal that killed it.
        output: its standard output; b"" if it was handed out as it came.
        messages: the last 4 KiB of its standard error.
        exceeded_memory: the kernel killed a process because of the limit of its control group.
    """

    status: int
    output: bytes
    messages: str
    exceeded_memory: bool = False

    @property
    def last_message(self) -> str:
        """The printable ASCII of the last line of its standard error; "" if there is none."""
        return "".join(re.findall(r"[ -~]", self.messages.strip().rpartition("\n")[2]))


def run_program(  # noqa: PLR0913 - properties of a child process
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    descriptors: Sequence[int],
    stdin: bytes,
    on_output: Callable[[bytes], None] | None,
    watch: Callable[[int], None],
) -> ProgramResult:
    """Run a program to its end; an exception or a signal leaves no process behind.

    Args:
        environment: all its variables.
        descriptors: that it inherits.
        on_output: receives its standard output as it comes.
        watch: called with its process id ten times a second; raises to end it.

    Raises:
        ConversionFailed: it printed more than 16 MiB, and there is no `on_output`.
    """
    output, messages = bytearray(), bytearray()

    def add_output(data: bytes) -> None:
        output.extend(data)
        if len(output) > _OUTPUT_BYTES:
            raise ConversionFailed(f"{command[0]} printed more than {_OUTPUT_BYTES} bytes")

    def add_messages(data: bytes) -> None:
        messages.extend(data)
        del messages[:-_MESSAGE_BYTES]

    # In memory, because it may hold secrets.
    with open(os.memfd_create("stdin"), "w+b") as file, _interruption() as interrupted:  # noqa: PTH123
        file.write(stdin)
        file.seek(0)
        process = subprocess.Popen(  # noqa: S603 - the arguments are ours
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=directory,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
        )
        try:
            _read(process, on_output or add_output, add_messages, watch, interrupted)
        finally:
            _end(process)
    status = process.returncode
    if status > STATUS_OF_SIGNALS:  # bwrap tells the signal like a shell
        status = STATUS_OF_SIGNALS - status
    return ProgramResult(status, bytes(output), messages.decode(errors="replace"))


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Yield an event that a signal sets; the signal is raised again after the block."""
    interrupted = threading.Event()
    if threading.current_thread() is threading.main_thread():
        with interrupt_on_signals(interrupted.set):
            yield interrupted
    else:
        yield interrupted


def _read(
    process: subprocess.Popen[bytes],
    on_output: Callable[[bytes], None],
    on_messages: Callable[[bytes], None],
    watch: Callable[[int], None],
    interrupted: threading.Event,
) -> None:
    """Read both streams until the process has ended, or a signal came."""
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for stream, receive in zip(_streams(process), (on_output, on_messages), strict=True):
                selector.register(stream, selectors.EVENT_READ, receive)
            selector.register(ended, selectors.EVENT_READ)
            watched_at = time.monotonic()
            while selector.get_map() and not interrupted.is_set():
                events = selector.select(_WATCH_SECONDS)
                if not events and ended not in selector.get_map():
                    return  # a child of the program keeps a stream open
                for key, _ in events:
                    data = os.read(key.fd, _READ_BYTES) if key.data else b""
                    if data:
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
                if time.monotonic() >= watched_at + _WATCH_SECONDS:
                    watched_at = time.monotonic()
                    watch(process.pid)
    finally:
        os.close(ended)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the program and its children, and wait until they are gone."""
    signal_tree(process.pid, signal.SIGKILL)
    process.wait()
    for stream in _streams(process):
        # A stream ends when its last process has closed it.
        while select.select([stream], [], [], _END_SECONDS)[0] and os.read(stream.fileno(), _READ_BYTES):
            pass
        stream.close()


def _streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], ...]:
    """Return standard output and standard error."""
    return tuple(stream for stream in (process.stdout, process.stderr) if stream)
