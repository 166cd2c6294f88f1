"""Base images that are not found any more: who reads them goes on, and then nothing holds them."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from copy import copy
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import Unprocessable
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import base_image
from tests.server.snapshots.doubles import FULL, VERSION, WINDOW_SECONDS, World, infra_env_of
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, bytes_of, etag_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile
    from image_service.core.images.base_image import BaseImage

KEY = (VERSION, "x86_64", FULL)
MOMENT = 0.01


@attrs.define
class Superseding:
    """A world whose base image another takes the place of."""

    world: World
    open_files: ExitStack

    def put(self, content: bytes) -> weakref.ref[BaseFile]:
        """Let the catalog find another base image from now on."""
        before: BaseImage | None = self.world.catalog.images.get(KEY)
        base = self.open_files.enter_context(
            base_image(build_live_iso({**live_files(), "coreos/x": content}))
        )
        self.world.catalog.images[KEY] = attrs.evolve(base, file=copy(base.file))  # ours alone
        if before is not None:
            self.world.images.retention.supersede(before)
        return weakref.ref(self.world.catalog.images[KEY].file)

    def pass_time(self, seconds: float) -> None:
        """Let time go by, and do what is done regularly."""
        self.world.clock.advance(seconds)
        self.world.images.mounts.unsaved()
        self.world.images.retention.release_superseded()
        gc.collect()


@pytest.fixture
def superseding() -> Iterator[Superseding]:
    with ExitStack() as open_files:
        yield Superseding(open_files.enter_context(make_world()), open_files)


def test_mount_in_progress_continues_with_the_old_base(superseding: Superseding) -> None:
    client = Client(superseding.world)
    superseding.put(b"old")
    first = bytes_of(client.range())
    superseding.put(b"new")
    for _ in range(10):
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        assert bytes_of(client.range()) == first
    assert bytes_of(client.head()) != first


def test_etag_of_the_old_base_is_retained_for_a_window(superseding: Superseding) -> None:
    client = Client(superseding.world)
    superseding.put(b"old")
    etag = etag_of(client.head())
    superseding.put(b"new")
    superseding.pass_time(WINDOW_SECONDS - MOMENT)
    assert etag_of(client.named(etag)) == etag
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert etag_of(client.named(etag)) != etag


def test_nothing_references_the_old_base_in_the_end(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    old = superseding.put(b"old")
    client.range()
    client.whole()
    superseding.put(b"new")
    for _ in range(3):
        superseding.pass_time(WINDOW_SECONDS - MOMENT)
        client.range()
    assert old() is not None
    superseding.pass_time(2 * WINDOW_SECONDS)
    superseding.pass_time(MOMENT)
    assert old() is None
    held = world.images.cache.held_bytes
    client.whole()
    assert world.images.cache.held_bytes > held


def test_cached_refusal_does_not_reference_the_old_base(superseding: Superseding) -> None:
    world, client = superseding.world, Client(superseding.world)
    old = superseding.put(b"old")
    world.assisted.reported = infra_env_of(["two\nlines"])
    assert isinstance(client.ask().error, Unprocessable)
    superseding.put(b"new")
    superseding.pass_time(2 * WINDOW_SECONDS)
    assert old() is None


def test_base_of_the_same_bytes_replaces_the_old_one_at_once(superseding: Superseding) -> None:
    """Such as one that was fetched again because the other had rotted."""
    client = Client(superseding.world)
    superseding.put(b"same")
    before = client.range()
    again = superseding.put(b"same")
    after = client.head()
    assert etag_of(after) == etag_of(before)
    assert after.version.base.file is again()
