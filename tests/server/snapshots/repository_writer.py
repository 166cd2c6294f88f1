"""A process of its own that adds snapshots to a store, and prints the result of each.

Arguments: the store's directory, the writer's name, the number of the first key and of the one behind the
last. Keys are numbers, and a payload is its writer's name over and over.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.repositories import repository_in

PAYLOAD_BYTES = 100_000


def key_of(number: int) -> bytes:
    return b"%d" % number


def payload_of(name: str) -> bytes:
    return name.encode() * (PAYLOAD_BYTES // len(name))


def main() -> None:
    directory, name, first, end = sys.argv[1:]
    store = repository_in(Path(directory))
    print("ready", flush=True)  # noqa: T201 - it is who started this that reads
    sys.stdin.readline()
    for number in range(int(first), int(end)):
        won = outcome(store.add(key_of(number), 1, payload_of(name), 0.0))
        print(number, "won" if won else "lost", flush=True)  # noqa: T201 - same


if __name__ == "__main__":
    main()
