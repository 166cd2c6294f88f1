"""Builds the short links over the repository of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.links.links import Links
from image_service.server.links.repository import LinkRepository
from image_service.server.links.target_url import OwnUrls

if TYPE_CHECKING:
    from image_service.common.concurrency.parts import PartsStack
    from image_service.server.snapshots.build_snapshots import BootImageParts
    from image_service.settings.settings import Settings

CLEANUP_SECONDS = 60.0


def build_links(
    parts: PartsStack, built: BootImageParts, settings: Settings, base_url: str, *, is_leader: bool
) -> Links:
    """Return the short links; the leader erases expired ones.

    Args:
        built: boot images, and the repository in which links are stored too.
        base_url: by which clients reach the service, without a slash at its end.
        is_leader: True in one process of this host.
    """
    links = Links(
        LinkRepository(built.repository),
        lambda: built.sealed.cipher,
        built.images,
        OwnUrls(base_url, {settings.listen.port, settings.listen.http_port}),
        settings.links.max_seconds,
        coordination=built.coordination,
        clock=parts.reactor,
        wall_clock=built.wall_clock,
    )
    if is_leader:
        parts.call_every(CLEANUP_SECONDS, links.remove_expired)
    return links
