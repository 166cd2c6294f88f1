from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.coreos.stream_metadata import select_releases
from image_service.settings.os_images import OsImage
from image_service.streams.build import StreamSync
from image_service.streams.stream_state import move_alias
from image_service.streams.streams import StreamRelease
from tests.coreos.streams import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from image_service.coreos.stream_metadata import Release

CONFIGURED = OsImage("9.6", "x86_64", "full-iso", ("4.20",), "https://mirror.example/9.6.iso")


def release(version: str, name: str = "stable") -> StreamRelease:
    return StreamRelease(name, select_releases(stream(version), ["x86_64"])[0])


@attrs.define(eq=False)
class Doubles:
    """A catalog, streams and a mirror that record their calls."""

    desired: tuple[StreamRelease, ...] = ()
    aliases: Mapping[tuple[str, str], str] = attrs.field(factory=dict)
    ready: set[str] = attrs.field(factory=set)
    entries: tuple[OsImage, ...] = ()
    named: Mapping[tuple[str, str], str] = attrs.field(factory=dict)
    updates: int = 0

    def replace_images(self, entries: Iterable[OsImage]) -> None:
        self.entries = tuple(entries)

    def set_aliases(self, aliases: Mapping[tuple[str, str], str]) -> None:
        self.named = aliases

    def has_ready_image(self, version: str, architecture: str) -> bool:
        return architecture == "x86_64" and version in self.ready

    def move_aliases(self, is_ready: Callable[[Release], bool]) -> None:
        current = self.aliases.get(("stable", "x86_64"))
        moved = move_alias(current, [desired.release for desired in self.desired], is_ready)
        self.aliases = {("stable", "x86_64"): moved} if moved else {}

    def update(self) -> None:
        self.updates += 1


@pytest.fixture
def doubles() -> Doubles:
    return Doubles()


@pytest.fixture
def sync(doubles: Doubles) -> StreamSync:
    return StreamSync((CONFIGURED,), doubles, doubles, doubles)  # type: ignore[arg-type] # all three in one


def test_catalog_gets_configured_images_and_desired_releases(doubles: Doubles, sync: StreamSync) -> None:
    doubles.desired = (release("2"), release("1"))
    sync.update_catalog()
    assert doubles.entries == (CONFIGURED, release("2").entry, release("1").entry)
    assert (doubles.named, doubles.updates) == ({}, 1)


def test_catalog_has_no_releases_that_are_not_desired(doubles: Doubles, sync: StreamSync) -> None:
    sync.update_catalog()
    assert doubles.entries == (CONFIGURED,)


def test_alias_moves_when_a_release_becomes_ready(doubles: Doubles, sync: StreamSync) -> None:
    doubles.desired = (release("2"), release("1"))
    for ready, named in (("1", "1"), ("2", "2")):
        doubles.ready = {ready}
        sync.update_aliases()
        assert doubles.named == {("stable", "x86_64"): named}
    assert doubles.updates == 2


def test_configured_image_stays_as_configured_and_gets_the_names_of_streams(
    doubles: Doubles, sync: StreamSync
) -> None:
    doubles.desired = (release("9.6"), release("9.6", "rhel"), release("9.7", "rhel"))
    sync.update_catalog()
    both, other = doubles.entries
    assert both == attrs.evolve(CONFIGURED, openshift_versions=("4.20", "stable", "rhel"))
    assert other == release("9.7", "rhel").entry
