"""A process that sends random ranges of a cached file to itself, as senders do, and compares every byte.

Arguments: directory, seed, ranges; "fill" in place of the ranges: reads all of the file again and again.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from pathlib import Path

from twisted.internet.task import Clock

from image_service.common.files.block_cache.block_cache import EPOCH_SECONDS, BlockCache
from tests.common.files.block_cache.caches import MIB, SMALLEST
from tests.common.files.block_cache.origin import Origin, content, identity_of

SIZE = 300 * MIB + 12_345
MAX_RANGE = 200_000


def main(directory: str, seed: str, count: str) -> None:
    """Read, and exit with an error at the first wrong byte."""
    clock = Clock()
    cache = BlockCache(Path(directory), SMALLEST, clock)
    file = cache.open(identity_of(SIZE), Origin())
    print("ready", flush=True)  # noqa: T201 - what the test waits for
    if count == "fill":
        while True:
            for offset in range(0, SIZE, MIB):
                assert file.read_at(offset, MIB) == content(offset, min(MIB, SIZE - offset))
    assert file.residency is not None
    cache.start()
    numbers = random.Random(seed)  # noqa: S311 - any will do
    sender, receiver = socket.socketpair()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_RANGE)
    for _ in range(int(count)):
        offset = numbers.randrange(SIZE)
        length = min(SIZE - offset, numbers.randrange(1, MAX_RANGE))
        while not (present := file.residency.resident_bytes(file, offset, length)):
            cache.end_senders()  # a reactor would turn meanwhile
            with file.hold(offset, 1):
                pass
            cache.start()
        if not numbers.randrange(8):
            time.sleep(0.001)  # an interruption where it would hurt most
        sent = os.sendfile(sender.fileno(), file.descriptor, offset, present)
        clock.advance(EPOCH_SECONDS)
        received = bytearray()
        while len(received) < sent:
            received += receiver.recv(sent - len(received))
        assert received == content(offset, sent), f"seed {seed}: wrong bytes at {offset}"
    cache.end_senders()
    cache.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
