from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.families.coreos.stream_metadata import select_releases
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.streams.build_streams import StreamSync
from image_service.server.streams.stream import StreamRelease
from image_service.server.streams.stream_state import move_alias
from image_service.settings.os_images import OsImage
from image_service.settings.stream_sources import StreamSource
from tests.core.families.coreos.streams import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from image_service.core.families.coreos.stream_metadata import Release

CONFIGURED = OsImage("9.6", "x86_64", "full-iso", ("4.20",), "https://mirror.example/9.6.iso")


def release(version: str, name: str = "stable") -> StreamRelease:
    return StreamRelease(name, select_releases(stream(version), ["x86_64"])[0])


@attrs.define(eq=False)
class Doubles:
    """A catalog, streams and a mirror that record their calls."""

    desired: tuple[StreamRelease, ...] = ()
    aliases: Mapping[tuple[str, str], str] = attrs.field(factory=dict)
    states: dict[str, BaseImageState] = attrs.field(factory=dict)
    entries: tuple[OsImage, ...] = ()
    named: Mapping[tuple[str, str], str] = attrs.field(factory=dict)
    updates: int = 0
    sources: tuple[StreamSource, ...] = ()

    def replace_images(self, entries: Iterable[OsImage]) -> None:
        self.entries = tuple(entries)

    def set_aliases(self, aliases: Mapping[tuple[str, str], str]) -> None:
        self.named = aliases

    def replace_sources(self, sources: Iterable[StreamSource]) -> None:
        self.sources = tuple(sources)

    def is_served(self, entry: OsImage) -> bool:
        return self.states.get(entry.version) in {BaseImageState.READY, BaseImageState.DEGRADED}

    def find_states(self, version: str, architecture: str) -> set[BaseImageState]:
        assert architecture == "x86_64"
        return {self.states[version]} if version in self.states else set()

    def move_aliases(self, may_replace: Callable[[Release, str | None], bool]) -> None:
        current = self.aliases.get(("stable", "x86_64"))
        moved = move_alias(current, [desired.release for desired in self.desired], may_replace)
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
    sync.update()
    assert doubles.entries == (CONFIGURED, release("2").entry, release("1").entry)
    assert (doubles.named, doubles.updates) == ({}, 1)


def test_catalog_has_no_releases_that_are_not_desired(doubles: Doubles, sync: StreamSync) -> None:
    sync.update()
    assert doubles.entries == (CONFIGURED,)


def test_alias_moves_when_a_release_becomes_ready(doubles: Doubles, sync: StreamSync) -> None:
    doubles.desired = (release("2"), release("1"))
    for ready, named in (("1", "1"), ("2", "2")):
        doubles.states = {ready: BaseImageState.READY}
        sync.update()
        assert doubles.named == {("stable", "x86_64"): named}
    assert doubles.updates == 2


@pytest.mark.parametrize(
    ("current", "newer", "named"),
    [
        (BaseImageState.READY, BaseImageState.DEGRADED, "1"),
        (BaseImageState.VERIFYING, BaseImageState.DEGRADED, "1"),
        (BaseImageState.DERIVING, BaseImageState.DEGRADED, "1"),
        (BaseImageState.DEGRADED, BaseImageState.DEGRADED, "2"),
        (BaseImageState.FAILED, BaseImageState.DEGRADED, "2"),
        (BaseImageState.DEGRADED, BaseImageState.DERIVING, "1"),
        (BaseImageState.DEGRADED, BaseImageState.READY, "2"),
        (BaseImageState.READY, BaseImageState.READY, "2"),
    ],
)
def test_degraded_release_replaces_one_that_is_not_ready(
    doubles: Doubles, sync: StreamSync, current: BaseImageState, newer: BaseImageState, named: str
) -> None:
    doubles.desired = (release("2"), release("1"))
    doubles.states = {"1": BaseImageState.DEGRADED}
    sync.update()
    assert doubles.named == {("stable", "x86_64"): "1"}
    doubles.states = {"1": current, "2": newer}
    sync.update()
    assert doubles.named == {("stable", "x86_64"): named}


def test_configured_image_stays_as_configured_and_gets_the_names_of_streams(
    doubles: Doubles, sync: StreamSync
) -> None:
    doubles.desired = (release("9.6"), release("9.6", "rhel"), release("9.7", "rhel"))
    sync.update()
    both, other = doubles.entries
    assert both == attrs.evolve(CONFIGURED, openshift_versions=("4.20", "stable", "rhel"))
    assert other == release("9.7", "rhel").entry


def test_catalog_gets_the_releases_that_are_desired_after_an_alias_moved(
    doubles: Doubles, sync: StreamSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubles.desired = (release("2"), release("1"))

    def move_aliases(_: Doubles, __: object) -> None:
        doubles.desired = (release("2"),)
        doubles.aliases = {("stable", "x86_64"): "2"}

    monkeypatch.setattr(Doubles, "move_aliases", move_aliases)
    sync.update()
    assert doubles.entries == (CONFIGURED, release("2").entry)
    assert doubles.named == {("stable", "x86_64"): "2"}


def other_image(version: str, *openshift_versions: str) -> OsImage:
    return attrs.evolve(CONFIGURED, version=version, openshift_versions=openshift_versions)


def test_other_images_and_streams_are_configured_at_once(doubles: Doubles, sync: StreamSync) -> None:
    source = StreamSource("next", "https://mirror.example/next.json", ("x86_64",))
    sync.configure([other_image("9.7", "4.21")], [source])
    assert doubles.entries == (other_image("9.7", "4.21"),)
    assert (doubles.sources, doubles.updates) == ((source,), 1)


def test_image_that_is_not_configured_any_more_stays_until_its_successor_is_served(
    doubles: Doubles, sync: StreamSync
) -> None:
    sync.configured = (other_image("9.6", "4.20", "4.19"),)
    doubles.states["9.6"] = BaseImageState.READY
    successor = other_image("9.7", "4.20")
    sync.configure([successor], [])
    assert doubles.entries == (other_image("9.6", "4.20"), successor)  # nothing is configured for 4.19
    second = other_image("9.8", "4.20")
    sync.configure([second], [])  # before the first one was served
    assert doubles.entries == (other_image("9.6", "4.20"), second)
    doubles.states["9.8"] = BaseImageState.DEGRADED
    sync.update()
    assert list(doubles.entries) == [second]


def test_image_that_was_never_served_is_removed_at_once(doubles: Doubles, sync: StreamSync) -> None:
    doubles.states["9.6"] = BaseImageState.FAILED
    sync.configure([other_image("9.7", "4.20")], [])
    assert doubles.entries == (other_image("9.7", "4.20"),)


def test_image_that_is_configured_again_is_itself(doubles: Doubles, sync: StreamSync) -> None:
    doubles.states["9.6"] = BaseImageState.READY
    sync.configure([other_image("9.7", "4.20")], [])
    sync.configure([CONFIGURED], [])
    assert doubles.entries == (CONFIGURED,)
