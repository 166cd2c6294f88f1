"""An update to a later release, and the return from it, while clients read."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from tests.acceptance.service import SERVE
from tests.core.formats.filesystems.iso_builder import IGNITION_LENGTH
from tests.core.images.building import base_image, bytes_of
from tests.core.images.later_layout import LATER as NEW
from tests.core.images.later_layout import LAYOUTS_OF_BOTH
from tests.core.images.later_layout import PRESENT as OLD
from tests.replicas.balancer import Mode
from tests.replicas.site import running_site

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from tests.replicas.infra_envs import InfraEnv
    from tests.replicas.mount import Mount
    from tests.replicas.replica import Replica
    from tests.replicas.site import Site

LATER_RELEASE = (sys.executable, "-m", "tests.replicas.later_release", "serve")
TEXT = "x" * IGNITION_LENGTH
"""A config with it is too large to be stored: the layouts make different bytes of it."""
RANGES = 10
"""That each mount reads in each state."""


@attrs.frozen
class Reader:
    """A mount that reads until the end of the test."""

    mount: Mount
    reading: Future[None]


class Readers:
    """Mounts through the balancer, each checked when it starts, that read until `finish`."""

    def __init__(self, site: Site, threads: ThreadPoolExecutor) -> None:
        self._site = site
        self._threads = threads
        self._over = threading.Event()
        self._readers: list[Reader] = []

    def start(self, infra_env: InfraEnv, layout: int, mode: Mode = Mode.REQUESTS) -> Mount:
        """Start a mount, which must get an image of this layout."""
        mount = self._site.mount(infra_env, mode)
        mount.start()
        check(self._site, mount, infra_env, layout)
        reading = self._threads.submit(mount.read_ranges, RANGES, self._over, 0.01)
        self._readers.append(Reader(mount, reading))
        return mount

    def read_on(self, count: int = RANGES) -> None:
        """Wait until each has read some ranges more; raise what one has found."""
        for reader in self._readers:
            target = reader.mount.read + count
            while reader.mount.read < target and not reader.reading.done():
                self._over.wait(0.01)

    def finish(self) -> None:
        """Stop reading; raise what a reader has found."""
        self._over.set()
        for reader in self._readers:
            reader.reading.result()


def check(site: Site, mount: Mount, infra_env: InfraEnv, layout: int) -> None:
    """Check that an image is of an answer of assisted-service, and of this layout."""
    with base_image(site.base.read_bytes()) as base:
        made = (
            compose(full_canvas(base), Customization(config, (), None), "", LAYOUTS_OF_BOTH[layout])
            for config in infra_env.configs
        )
        image = next(image for image in made if image.etag == mount.etag)
        assert mount.image == bytes_of(image)


def replace(site: Site, number: int, command: Sequence[str]) -> Replica:
    """Drain a replica, and start another release in its place."""
    replica = site.replicas[number - 1]
    site.balancer.drain(number)
    replica.stop()
    replica.start(command)
    replica.wait_until_healthy()
    site.balancer.set_ready(number)
    site.balancer.wait_until_up(number)
    return replica


def refused(client: Mount) -> bool:
    """Return True if a range is refused for now; else it must be right."""
    answer = client.get({"Range": "bytes=40000-40099"})
    assert answer.status in {206, 503}
    if answer.status == 206:
        assert (answer.fields["etag"], answer.content) == (client.etag, client.image[40000:40100])
        return False
    assert (answer.fields["retry-after"], answer.fields["connection"]) == ("1", "close")
    return True


@pytest.mark.soak  # test_snapshot_layouts and test_layouts try the same with doubles
@pytest.mark.acceptance
def test_mounts_get_one_image_while_replicas_are_updated_and_back() -> None:
    with running_site(2, SERVE) as site, ThreadPoolExecutor(8) as threads:
        one, two = site.replicas
        readers = Readers(site, threads)
        try:
            before = site.register(text=TEXT)
            readers.start(before, OLD)
            readers.start(before, OLD, Mode.CONNECTIONS)

            replace(site, 1, LATER_RELEASE)
            during = site.register(text=TEXT)
            with closing(site.client(during, one)) as client:  # the newer release makes what both know
                client.start()
                check(site, client, during, OLD)
            readers.start(during, OLD)
            readers.read_on()

            replace(site, 2, LATER_RELEASE)
            one.service.wait_for(f"(new snapshots get layout {NEW})")
            after = site.register(text=TEXT)
            readers.start(after, NEW)
            readers.start(before, OLD, Mode.CONNECTIONS)  # the snapshot keeps its layout
            client = site.client(after, two)
            client.start()
            check(site, client, after, NEW)
            client.close()
            readers.read_on()

            replace(site, 2, SERVE)
            assert refused(client)
            client.move_to(one.host)
            assert not refused(client)
            client.close()
            with closing(site.client(after, two, 1)) as newcomer:
                newcomer.start()
                check(site, newcomer, after, OLD)
            one.service.wait_for(f"layout {NEW}(.*\n)+?.*(new snapshots get layout {OLD})")
            again = site.register(text=TEXT)
            readers.start(again, OLD)
            readers.read_on(3)  # half of the ranges of a later layout are refused once

            replace(site, 2, LATER_RELEASE)
            readers.read_on()
        finally:
            readers.finish()
