"""Slow readers hold every slot: ranges of mounts are served, and further downloads get Retry-After."""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.readers import Reader, reading
from tests.acceptance.service import Service, fetch, os_image, run_service
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VERSION = "slots"
SLOTS = 12
KIB = 1024
ROOTFS_BYTES = 16 * 1024 * KIB
_POLL_SECONDS = 0.05


@attrs.frozen
class Served:
    """One image on two listeners, and its bytes."""

    service: Service
    urls: tuple[str, str]
    content: bytes = attrs.field(repr=False)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    iso = tmp_path / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=hashlib.shake_128(b"slots").digest(ROOTFS_BYTES)), {})
    beside = free_port()
    environment = {
        "HTTP_LISTEN_PORT": str(beside),
        "HTTP_SERVES_IMAGES": "true",
        "MAX_CONCURRENT_REQUESTS": str(SLOTS),
        "MIN_DOWNLOAD_RATE": "0",  # else slow readers are aborted while others wait
    }
    with run_service(tmp_path, [os_image(iso, VERSION)], environment=environment) as service:
        infra_env_id = service.register(VERSION, {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        urls = (service.url + path, f"http://127.0.0.1:{beside}{path}")
        yield Served(service, urls, service.get_image(path).body)


def hold(stack: ExitStack, url: str) -> Reader:
    """Take a slot with a response that has begun and is far from its end."""
    reader = stack.enter_context(reading(url))
    reader.read_head()
    assert reader.status == 200
    return reader


def check_ranges(served: Served) -> None:
    """Read 64 KiB ranges at several offsets, as a mount does."""
    for number, url in enumerate(served.urls * 2):
        start = number * 4_000_037
        stop = start + 64 * KIB
        answer = fetch(url, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert (answer.status, answer.body) == (206, served.content[start:stop])


def test_slow_downloads_keep_their_slots_and_ranges_of_mounts_are_served(served: Served) -> None:
    before = served.service.descriptors
    with ExitStack() as stack:
        readers = [hold(stack, served.urls[number % 2]) for number in range(SLOTS)]
        for _ in range(3):
            check_ranges(served)
            for reader in readers:
                reader.read(10 * KIB)
        for url in served.urls:
            assert fetch(url, "HEAD").status == 200
            refusal = fetch(url)
            assert (refusal.status, refusal.json()["code"]) == (503, "unavailable")
            assert int(refusal.headers["Retry-After"]) > 0
        assert readers[0].read_to_the_end() == served.content
        assert fetch(served.urls[1]).body == served.content  # by the slot that came back
    assert fetch(served.urls[0]).body == served.content
    while served.service.descriptors > before:
        time.sleep(_POLL_SECONDS)
