"""Short links over doubles, with a repository in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.coordination import Coordination
from image_service.core.errors import Unavailable
from image_service.server.links.links import Links
from image_service.server.links.repository import LinkRepository
from image_service.server.links.target_url import OwnUrls
from tests.server.snapshots.doubles import BASE_URL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.server.links.repository import StoredLink
    from tests.server.snapshots.doubles import World

PORTS = frozenset({8080})
MAX_SECONDS = 2592000


class MemoryLinks(LinkRepository):
    """A repository that a test reads, and that fails when a test says so."""

    def __init__(self) -> None:
        self.rows: dict[bytes, StoredLink] = {}
        self.is_failing = False

    async def add(self, link: StoredLink, pinned: tuple[bytes, int] | None) -> None:
        """As `LinkRepository.add`."""
        del pinned
        self.rows[link.digest] = link

    async def find(self, digest: bytes) -> StoredLink | None:
        """As `LinkRepository.find`."""
        self._check()
        return self.rows.get(digest)

    async def list_usable(self, now: float) -> Sequence[StoredLink]:
        """As `LinkRepository.list_usable`."""
        return [link for link in self.rows.values() if link.sealed is not None and link.expires_at > now]

    async def end(self, link_id: str) -> bytes | None:
        """As `LinkRepository.end`."""
        found = next((link for link in self.rows.values() if link.id == link_id and link.sealed), None)
        if found is None:
            return None
        self.rows[found.digest] = attrs.evolve(found, sealed=None)
        return found.digest

    async def remove_expired(self, now: float, kept_seconds: float) -> None:
        """As `LinkRepository.remove_expired`."""
        self._check()
        for link in [link for link in self.rows.values() if link.expires_at <= now - kept_seconds]:
            del self.rows[link.digest]

    def _check(self) -> None:
        if self.is_failing:
            raise Unavailable("the database is away", retry_after_seconds=2)


def links_of(
    world: World, repository: LinkRepository | None = None, coordination: Coordination | None = None
) -> Links:
    """Return the links of one process."""
    return Links(
        repository or MemoryLinks(),
        lambda: world.archive.cipher,
        world.images,
        OwnUrls(lambda: [BASE_URL], PORTS),
        MAX_SECONDS,
        coordination=coordination or Coordination(),
        clock=world.clock,
        wall_clock=world.get_wall_time,
    )
