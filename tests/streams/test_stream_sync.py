from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.coreos.stream_metadata import select_releases
from image_service.settings.os_images import OsImage
from image_service.streams.stream_state import move_alias
from image_service.streams.stream_sync import StreamSync
from image_service.streams.streams import StreamRelease
from tests.coreos.streams import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from image_service.coreos.stream_metadata import Release

CONFIGURED = OsImage("9.6", "x86_64", "full-iso", ("4.20",), "https://mirror.example/9.6.iso")


def release(version: str, name: str = "stable") -> StreamRelease:
    return StreamRelease(name, select_releases(stream(version), ["x86_64"])[0])


@attrs.define(eq=False)
class World:
    """A catalog, streams and a mirror that take note of what they are told."""

    wanted: tuple[StreamRelease, ...] = ()
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
        moved = move_alias(current, [wanted.release for wanted in self.wanted], is_ready)
        self.aliases = {("stable", "x86_64"): moved} if moved else {}

    def update(self) -> None:
        self.updates += 1


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def following(world: World) -> StreamSync:
    return StreamSync((CONFIGURED,), world, world, world)  # type: ignore[arg-type] # of the mirror one method


def test_what_is_offered_is_held_beside_what_is_configured(world: World, following: StreamSync) -> None:
    world.wanted = (release("2"), release("1"))
    following.offers_changed()
    assert world.entries == (CONFIGURED, release("2").entry, release("1").entry)
    assert (world.named, world.updates) == ({}, 1)


def test_what_is_not_offered_is_not_held(world: World, following: StreamSync) -> None:
    following.offers_changed()
    assert world.entries == (CONFIGURED,)


def test_a_release_gets_the_name_once_it_is_ready(world: World, following: StreamSync) -> None:
    world.wanted = (release("2"), release("1"))
    for ready, named in (("1", "1"), ("2", "2")):
        world.ready = {ready}
        following.images_changed()
        assert world.named == {("stable", "x86_64"): named}
    assert world.updates == 2


def test_an_image_of_two_is_one_and_comes_from_where_it_is_configured(
    world: World, following: StreamSync
) -> None:
    world.wanted = (release("9.6"), release("9.6", "rhel"), release("9.7", "rhel"))
    following.offers_changed()
    both, other = world.entries
    assert both == attrs.evolve(CONFIGURED, openshift_versions=("4.20", "stable", "rhel"))
    assert other == release("9.7", "rhel").entry
