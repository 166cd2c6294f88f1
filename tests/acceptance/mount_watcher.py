"""Polls the mounts that the administrative listener shows, while a guest boots."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.service import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_SECONDS = 0.02


def list_mounts(admin_url: str) -> list[dict[str, Any]]:
    """Return the mounts that a service shows."""
    answer = fetch(f"{admin_url}/api/v1/mounts")
    assert answer.status == 200, answer
    mounts: list[dict[str, Any]] = json.loads(answer.body)["mounts"]
    return mounts


@attrs.define
class SeenMount:
    """The states of an infra-env's mount that were seen."""

    stages: list[str | None] = attrs.field(factory=list)
    """In the order in which they were seen, each once."""
    latest: dict[str, Any] = attrs.field(factory=dict)

    def add(self, mount: dict[str, Any]) -> None:
        """Add the result of a poll."""
        self.latest = mount
        if not self.stages or self.stages[-1] != mount["stage"]:
            self.stages.append(mount["stage"])


@contextmanager
def watching(admin_url: str, infra_env: str) -> Iterator[SeenMount]:
    """Poll the mount of an infra-env until the block ends, and once more."""
    seen, stopped = SeenMount(), threading.Event()

    def poll() -> None:
        is_last = False
        while not is_last:
            is_last = stopped.wait(POLL_SECONDS)
            for mount in list_mounts(admin_url):
                if mount["infra_env"] == infra_env:
                    seen.add(mount)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()
