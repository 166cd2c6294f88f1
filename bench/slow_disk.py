"""A file system that reads like a slow disk: the FUSE protocol itself; needs root.

``python -m bench.slow_disk FILE MOUNTPOINT`` shows FILE in the directory MOUNTPOINT under its own name. After
SIGUSR1 each read takes ``DELAY_SECONDS``; SIGTERM ends the process.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import signal
import stat
import struct
import sys
import time
from pathlib import Path

DELAY_SECONDS = 0.05


class _Opcode(enum.IntEnum):
    """Of linux/fuse.h, protocol 7.31."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    RELEASE = 18
    INIT = 26
    INTERRUPT = 36
    BATCH_FORGET = 42


_KEEP_CACHE = 2  # the kernel may keep cached pages when the file is opened again
_MAX_READAHEAD = 128 * 1024
_HEAD = struct.Struct("=IIQQIIII")
_ROOT, _FILE = 1, 2
_HOURS = 36_000
_READ_ONLY, _DETACH = 1, 2  # of mount(2) and umount2(2)

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Mount, and respond to the kernel until SIGTERM."""
    source, directory = Path(sys.argv[1]), os.fsencode(sys.argv[2])
    channel = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"slow", directory, b"fuse", _READ_ONLY, options):
        raise OSError(ctypes.get_errno(), "mount", sys.argv[2])
    disk = _Disk(source)
    signal.signal(signal.SIGUSR1, lambda *_: disk.slow_down())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while True:
            _respond(channel, disk, os.read(channel, 1024 * 1024))
    finally:
        _libc.umount2(directory, _DETACH)


def _respond(channel: int, disk: _Disk, request: bytes) -> None:
    _, opcode, unique, node, *_ = _HEAD.unpack_from(request)
    if opcode in {_Opcode.FORGET, _Opcode.BATCH_FORGET, _Opcode.INTERRUPT}:  # without a response
        return
    try:
        error, data = 0, disk.respond(opcode, node, request[_HEAD.size :])
    except OSError as failure:
        error, data = -(failure.errno or errno.EIO), b""
    os.write(channel, struct.pack("=IiQ", 16 + len(data), error, unique) + data)


class _Disk:
    """Responds to requests for the file."""

    def __init__(self, source: Path) -> None:
        self._name = os.fsencode(source.name)
        self._descriptor = os.open(source, os.O_RDONLY)
        self._size = os.fstat(self._descriptor).st_size
        self._delay_seconds = 0.0

    def slow_down(self) -> None:
        """Delay reads from now on."""
        self._delay_seconds = DELAY_SECONDS

    def respond(self, opcode: int, node: int, body: bytes) -> bytes:
        """Return the response to a request; raises OSError."""
        match opcode:
            case _Opcode.INIT:
                return struct.pack("=IIIIHHIIHHI28x", 7, 31, _MAX_READAHEAD, 0, 8, 8, 4096, 1, 0, 0, 0)
            case _Opcode.LOOKUP if body == self._name + b"\0":
                return struct.pack("=QQQQII", _FILE, 0, _HOURS, _HOURS, 0, 0) + self._attributes(_FILE)
            case _Opcode.LOOKUP:
                raise OSError(errno.ENOENT, "")
            case _Opcode.GETATTR:
                return struct.pack("=QII", _HOURS, 0, 0) + self._attributes(node)
            case _Opcode.OPEN:
                return struct.pack("=QIi", 0, _KEEP_CACHE, 0)
            case _Opcode.READ:
                return self._read(*struct.unpack_from("=QI", body, 8))
            case _Opcode.RELEASE:
                return b""
        raise OSError(errno.ENOSYS, "")

    def _read(self, offset: int, count: int) -> bytes:
        time.sleep(self._delay_seconds)
        return os.pread(self._descriptor, count, offset)

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o444
        size = 0 if node == _ROOT else self._size
        owner = (0, 0)
        return struct.pack("=QQQ36xIIIIIII", node, size, size // 512, mode, 1, *owner, 0, 4096, 0)


if __name__ == "__main__":
    main()
