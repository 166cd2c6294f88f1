"""Minimal ISOs, which have the base URL of the service in them, when that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.images.reference import Kind
from tests.core.families.coreos.miniso_builder import add_minimal_iso
from tests.core.formats.filesystems.iso_builder import live_files
from tests.core.images.building import base_image
from tests.server.snapshots.doubles import BASE_URL, FULL, GRACE_SECONDS, REF, VERSION, evict_everything
from tests.server.snapshots.mounting import Client, bytes_of, etag_of, pass_ttl, restart, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.snapshots.doubles import World

OTHER_URL = "https://192.0.2.7:8080"
MINIMAL_REF = attrs.evolve(REF, kind=Kind.MINIMAL_ISO)


@pytest.fixture
def world(world: World) -> Iterator[World]:
    with base_image(add_minimal_iso(live_files())) as base:
        world.catalog.images[VERSION, "x86_64", FULL] = base
        yield world


@pytest.fixture
def client(world: World) -> Client:
    return Client(world, ref=MINIMAL_REF)


@pytest.fixture
def other(client: Client) -> Client:
    return attrs.evolve(client, address="192.0.2.2")


def urls_in(image: bytes) -> set[str]:
    """Return which of the base URLs an image has."""
    return {url for url in (BASE_URL, OTHER_URL) if f"{url}/boot-artifacts".encode() in image}


def test_new_mounts_get_the_new_url_and_those_that_have_begun_keep_theirs(
    world: World, client: Client, other: Client
) -> None:
    first = client.range()
    world.base_url = OTHER_URL
    for _ in range(2):
        assert etag_of(client.range()) == etag_of(first)
        later = other.range()
        assert urls_in(bytes_of(later)) == {OTHER_URL}
        assert etag_of(later) == etag_of(other.head()) == etag_of(client.head()) != etag_of(first)
        evict_everything(world)
    assert bytes_of(client.range()) == bytes_of(first)
    assert urls_in(bytes_of(first)) == {BASE_URL}
    assert etag_of(client.named(etag_of(first))) == etag_of(first)
    assert rounds(world) == 1


def test_restart_with_another_url_is_the_same(world: World, client: Client, other: Client) -> None:
    first = client.range()
    world.base_url = OTHER_URL
    restart(world)
    assert urls_in(bytes_of(other.range())) == {OTHER_URL}
    assert bytes_of(client.range()) == bytes_of(first)


def test_url_that_returns_makes_the_first_image_again(world: World, client: Client, other: Client) -> None:
    first = client.range()
    world.base_url = OTHER_URL
    other.range()
    world.base_url = BASE_URL
    assert etag_of(attrs.evolve(client, address="192.0.2.3").range()) == etag_of(first)


def test_full_iso_stays_as_it_is(world: World, client: Client) -> None:
    full = attrs.evolve(client, ref=REF)
    first = full.range().version
    world.base_url = OTHER_URL
    assert full.head().version == first


def test_replicas_replace_the_url_when_they_validate_it(world: World, client: Client, other: Client) -> None:
    """While an update changes it, replicas with both URLs must not replace each other's snapshots in turn."""
    world.clock_error_seconds = GRACE_SECONDS
    restart(world)
    first = client.range()
    world.base_url = OTHER_URL
    assert etag_of(other.head()) == etag_of(first)
    assert urls_in(bytes_of(other.head())) == {BASE_URL}
    pass_ttl(world)
    assert urls_in(bytes_of(other.head())) == {OTHER_URL}
    assert bytes_of(client.range()) == bytes_of(first)
    assert rounds(world) == 2
