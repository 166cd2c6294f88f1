"""Snapshots whose layouts not all replicas have: after an update, and after a return to the release before.

The releases are this one, as the release before, and a made-up later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import UpstreamError
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.layouts import LAYOUTS
from image_service.server.http.problem import problem, status_of
from image_service.server.snapshots.storage.shared_layouts import LayoutMissing
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from tests.core.images.later_layout import LATER as NEW
from tests.core.images.later_layout import LAYOUTS_OF_BOTH, become_later_release
from tests.core.images.later_layout import PRESENT as OLD
from tests.server.snapshots.doubles import FULL, GRACE_SECONDS, MODIFIED, TTL_SECONDS, VERSION, WINDOW_SECONDS
from tests.server.snapshots.mounting import Client, bytes_of, etag_of, pass_ttl, restart, rounds, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.snapshots.doubles import World


@pytest.fixture(autouse=True)
def _later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    become_later_release(monkeypatch)


@pytest.fixture
def other(client: Client) -> Client:
    return attrs.evolve(client, address="192.0.2.2")


@pytest.fixture
def return_to_release_before(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Restart as the release before; other replicas have these newest layouts."""

    def restart_without_newest(*others: int) -> None:
        monkeypatch.delitem(LAYOUTS, NEW)
        restart(world)
        see(world, OLD, *others)

    return restart_without_newest


def see(world: World, *newest: int) -> None:
    """Record the newest layouts of all replicas."""
    world.archive.layouts.record(newest)


def expected_etag(world: World, layout: int) -> str:
    """Return the entity tag of an image of what assisted-service answers now."""
    canvas = full_canvas(world.catalog.images[VERSION, "x86_64", FULL])
    customization = Customization(world.assisted.config, (), MODIFIED)
    return compose(canvas, customization, "", LAYOUTS_OF_BOTH[layout]).etag


def test_new_snapshot_gets_the_newest_layout_that_all_replicas_have(world: World, client: Client) -> None:
    see(world, OLD, NEW)
    assert etag_of(client.range()) == expected_etag(world, OLD)
    see(world, NEW)
    pass_ttl(world, "changed")
    assert etag_of(client.whole()) == expected_etag(world, NEW)


def test_snapshot_keeps_its_layout_after_an_update(world: World, client: Client, other: Client) -> None:
    see(world, OLD)
    etag = etag_of(client.range())
    restart(world)
    see(world, NEW)
    for reader in (client, other):
        assert etag_of(reader.range()) == etag
        assert etag_of(reader.head()) == etag
    pass_ttl(world)
    assert etag_of(client.range()) == etag_of(other.head()) == etag
    pass_ttl(world, "changed")
    assert etag_of(other.head()) == expected_etag(world, NEW)
    assert etag_of(client.range()) == etag


# An older replica joins the newer ones.


def test_new_mounts_get_the_answer_with_the_older_layout_and_others_go_on(
    world: World, client: Client, other: Client
) -> None:
    first = client.range()
    etags = {layout: expected_etag(world, layout) for layout in LAYOUTS}
    see(world, OLD, NEW)
    assert etag_of(other.range()) == etag_of(other.head()) == etags[OLD]
    assert etag_of(client.range()) == etags[NEW] == etag_of(first)
    assert bytes_of(client.range()) == bytes_of(first)
    assert rounds(world) == 1
    restart(world)
    assert etag_of(other.range()) == etags[OLD]
    assert etag_of(client.range()) == etags[NEW]
    assert rounds(world) == 1


def test_answer_stored_again_is_validated_when_the_other_would_be(
    world: World, client: Client, other: Client
) -> None:
    client.range()
    world.clock.advance(TTL_SECONDS - 1)
    see(world, OLD, NEW)
    etag = etag_of(other.range())
    restart(world)
    see(world, OLD, NEW)
    assert etag_of(other.range()) == etag
    assert rounds(world) == 1
    world.clock.advance(1)
    assert etag_of(other.range()) == etag
    assert rounds(world) == 2


def test_answer_stored_again_has_no_further_grace(world: World, client: Client, other: Client) -> None:
    client.range()
    world.assisted.failures = {"ignition": UpstreamError("502")}
    world.clock.advance(TTL_SECONDS)
    other.range()
    world.clock.advance(GRACE_SECONDS / 2)
    see(world, OLD, NEW)
    other.whole()
    world.clock.advance(GRACE_SECONDS / 2)
    with pytest.raises(UpstreamError):
        other.whole()


# The release before.


def test_release_before_serves_new_mounts_without_asking(
    world: World, client: Client, other: Client, return_to_release_before: Callable[..., None]
) -> None:
    client.range()
    return_to_release_before(NEW)
    assert etag_of(other.range()) == expected_etag(world, OLD)
    assert rounds(world) == 1


@pytest.mark.parametrize("mode", [ReadMode.RESUME, ReadMode.NAMED])
def test_release_before_refuses_a_mount_that_another_replica_can_serve(
    client: Client, return_to_release_before: Callable[..., None], mode: ReadMode
) -> None:
    etag = etag_of(client.range())
    return_to_release_before(NEW)
    for starts_over in (False, True):
        request = ImageRequest(client.reader, mode, (etag,), starts_over=starts_over)
        error = client.ask(request).error
        assert isinstance(error, LayoutMissing)
        assert (status_of(error), error.retry_after_seconds) == (503, 1)
        answer = problem(error, {}).problem
        assert answer is not None
        assert answer.must_close


def test_release_before_alone_has_lost_the_mount(
    world: World, client: Client, return_to_release_before: Callable[..., None]
) -> None:
    client.range()
    return_to_release_before()
    assert isinstance(client.ask().error, VersionLost)
    request = ImageRequest(client.reader, ReadMode.RESUME, starts_over=True)
    assert etag_of(client.ask(request).composed) == expected_etag(world, OLD)
    assert etag_of(client.range()) == expected_etag(world, OLD)


def test_mount_goes_on_at_the_newer_release_after_the_other_has_refused_it(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bytes_of(client.range())
    with monkeypatch.context() as patch:
        patch.delitem(LAYOUTS, NEW)
        restart(world)
        see(world, OLD, NEW)
        say(world, "changed")
        assert isinstance(client.ask().error, LayoutMissing)
    world.clock.advance(WINDOW_SECONDS - 1)
    restart(world)
    see(world, OLD, NEW)
    assert bytes_of(client.range()) == expected


def test_snapshot_of_a_layout_that_was_removed_is_stored_again_for_new_mounts(
    world: World, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(world, OLD)
    client.range()
    monkeypatch.delitem(LAYOUTS, OLD)
    restart(world)
    assert etag_of(other.range()) == expected_etag(world, NEW)
    assert isinstance(client.ask().error, VersionLost)
