"""Short links: makes, opens, lists and revokes them.

A link opens an image like the URL that it was made of: with the same credentials, which assisted-service
goes on to check. All who have its code can read the image. The code is in no table, log or metric. An opened
link is kept in memory for a while; the process that ends one bumps its counter, and all processes read it
again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.rate_limiter import RateLimiter
from image_service.common.openapi.bodies import Time, body, render_body
from image_service.core.errors import (
    Gone,
    ImageServiceError,
    InvalidParameter,
    NotFound,
    SnapshotUnreadable,
    TooManyWrongCodes,
    Unavailable,
)
from image_service.core.images.reference import Kind, PinnedVersion, Reader
from image_service.server.http.dates import format_epoch
from image_service.server.http.problem import status_of
from image_service.server.links.link import (
    INITRD,
    ISO,
    SCRIPT,
    LinkBody,
    LinkTarget,
    new_code,
    new_link_id,
)
from image_service.server.links.repository import StoredLink
from image_service.server.snapshots.versions import ImageRequest
from image_service.server.transport.admission.addresses import address_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.server.links.repository import LinkRepository
    from image_service.server.links.target_url import OwnUrls
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.snapshots.storage.encryption import SnapshotCipher

_log = Logger()

READ_AGAIN_SECONDS = 60.0
"""How long an opened link is used before it is read again; a revoked one is read again at once."""
UNREADABLE_SECONDS = 600.0
"""How long it is used beyond that while the database cannot be read."""
KEPT_SECONDS = 30 * 86400.0
"""How long an expired or revoked link is known as such; after that its code is unknown."""
MAX_OPENED = 4096
WRONG_CODES = 40
"""How many wrong codes a client may try at once, in each of at most 64 processes of a host; then one each
`WRONG_CODE_SECONDS`."""
WRONG_CODE_SECONDS = 36.0
MAX_CLIENTS = 4096
"""Whose wrong codes are counted."""


@attrs.frozen
class LinkRequest:
    """A request for a link.

    Args:
        url: of this service, with its credentials.
        expires_in: seconds.
        pinned: True: it keeps the present version of the image.
    """

    url: str = attrs.field(repr=False)
    expires_in: int
    label: str
    pinned: bool


@body()
class MadeLink:
    """A new link. The service does not keep its URL."""

    id: str
    url: str = attrs.field(repr=False)
    expires_at: Time


@attrs.define(eq=False)
class OpenedLink:
    """A link whose code was presented. Instants are the clock's seconds.

    Args:
        id: its name.
        counters: see `Links`, when it was read.
        read_at: when it was last read.
        expires_at: when it ends.
    """

    id: str
    digest: bytes
    target: LinkTarget
    counters: tuple[int, int]
    read_at: float
    expires_at: float


class Links:
    """The short links of the service.

    Args:
        cipher: returns the cipher of the present data key.
        max_seconds: how long a link may be valid.
        wall_clock: seconds since 1970.
        record_use: is called with the identifier of each link that is opened.
    """

    def __init__(  # noqa: PLR0913 - the parts of links, and two clocks
        self,
        repository: LinkRepository,
        cipher: Callable[[], SnapshotCipher],
        images: ImageFinder,
        own_urls: OwnUrls,
        max_seconds: int,
        *,
        coordination: Coordination,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
        record_use: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._repository = repository
        self._cipher = cipher
        self._images = images
        self._own_urls = own_urls
        self.max_seconds = max_seconds
        self._coordination = coordination
        self._clock = clock
        self._wall_clock = wall_clock
        self._record_use = record_use
        self._opened: LruCache[bytes, OpenedLink] = LruCache(MAX_OPENED)
        self._revocations = 0
        self._unreadable: set[str] = set()
        self._wrong_codes: RateLimiter[str] = RateLimiter(clock, WRONG_CODES, WRONG_CODE_SECONDS, MAX_CLIENTS)

    async def make(self, request: LinkRequest, client: str) -> MadeLink:
        """Make a link to an image that is served now.

        Raises:
            InvalidParameter: the URL is not of this service, or assisted-service refuses the image to it.
            ImageServiceError: the image, or the database, is not available now.
        """
        try:
            target, suffix = await self._find_target(request, client)
        except InvalidParameter:
            raise
        except ImageServiceError as error:
            if status_of(error) >= 500:  # noqa: PLR2004 - a failure of ours or of assisted-service
                raise
            raise InvalidParameter(f"url is not served: {error.detail}") from None
        code, now, ref, cipher = new_code(), self._wall_clock(), target.ref, self._cipher()
        description = LinkBody(
            id=new_link_id(),
            readable=True,
            label=request.label,
            infra_env=ref.infra_env_id,
            kind=ref.kind.value if ref.kind else "",
            version=ref.version or "",
            architecture=ref.architecture or "",
            pinned=request.pinned,
            created_at=format_epoch(now),
            expires_at=format_epoch(target.expires_at),
        )
        digest = cipher.link_digest_of(code)
        stored = StoredLink(
            description.id,
            digest,
            cipher.seal(digest, 0, json.dumps(description, default=render_body).encode()),
            cipher.seal_link(code, target.encode()),
            target.expires_at,
        )
        await self._repository.add(stored, self._kept_snapshot(target))
        url = f"{self._own_urls.base_url}/s/{code}.{suffix}"
        return MadeLink(id=description.id, url=url, expires_at=description.expires_at)

    async def find_size(self, url: str, client: str) -> int:
        """Return how many bytes the image, or the file of a base image, has that a URL names.

        Raises:
            InvalidParameter: the URL is not of this service, names no image, or assisted-service refuses it.
            ImageServiceError: the image is not available now.
        """
        route = self._own_urls.parse_image(url)
        if route.ref.needs_customization and route.ref.kind is Kind.IPXE_SCRIPT:
            raise InvalidParameter("the size of an iPXE script depends on who requests it")
        try:
            composed = await self._images.get(ImageRequest(Reader(client, route.credentials, route.ref)))
        except ImageServiceError as error:
            if status_of(error) >= 500:  # noqa: PLR2004 - a failure of ours or of assisted-service
                raise
            raise InvalidParameter(f"url is not served: {error.detail}") from None
        return composed.representation.image.size

    async def list_usable(self) -> Sequence[LinkBody]:
        """Return the links that have neither expired nor been revoked, the next to expire first."""
        found = await self._repository.list_usable(self._wall_clock())
        bodies = [self._describe(link) for link in found]
        unreadable = {body.id for body in bodies if not body.readable}
        for link_id in sorted(unreadable - self._unreadable):
            _log.warn("short link {link} cannot be read with the present secret: revoke it", link=link_id)
        self._unreadable = unreadable
        return bodies

    def _describe(self, link: StoredLink) -> LinkBody:
        """Return the description of a link, if it is of its row: a revocation ends the row of an id."""
        with suppress(AttributeError, SnapshotUnreadable, TypeError, ValueError):
            described = LinkBody(**json.loads(self._cipher().unseal(link.digest, 0, link.description)))
            if described.id == link.id:
                return described
        return LinkBody.of_unreadable(link.id, format_epoch(link.expires_at))

    async def revoke(self, link_id: str) -> None:
        """End a link at once, in all processes; raises NotFound if there is none of this id."""
        digest = await self._repository.end(link_id)
        if digest is None:
            raise NotFound("there is no such link, or it has ended")
        self._coordination.bump(digest)
        self._revocations += 1

    async def remove_expired(self) -> None:
        """Erase the targets of expired links if the database can be used; is called periodically."""
        with suppress(Unavailable):
            await self._repository.remove_expired(self._wall_clock(), KEPT_SECONDS)

    async def open(self, code: str, client: str) -> OpenedLink:
        """Return the link of a code.

        Args:
            code: its secret part.

        Raises:
            NotFound: there is no such link.
            Gone: it has expired or was revoked.
            TooManyWrongCodes: the client has presented too many wrong codes; this one was not looked up.
            Unavailable: the database cannot be read.
        """
        link = await self._open(code, address_group(client))
        self._record_use(link.id)
        return link

    async def _open(self, code: str, group: str) -> OpenedLink:
        if self._wrong_codes.is_exhausted(group):
            raise TooManyWrongCodes(
                "too many short links that do not exist were requested from this address",
                retry_after_seconds=int(WRONG_CODE_SECONDS),
            )
        digest = self._cipher().link_digest_of(code)
        known = self._opened.get(digest)
        if known is not None and self.is_current(known):
            return known
        try:
            return await self._read(code, digest)
        except NotFound:
            self._wrong_codes.admit(group)
            raise
        except Unavailable:
            if known is not None and self._is_usable(known, READ_AGAIN_SECONDS + UNREADABLE_SECONDS):
                return known
            raise

    def is_current(self, link: OpenedLink) -> bool:
        """Return True while a link may be used without reading it again."""
        return self._is_usable(link, READ_AGAIN_SECONDS)

    def _is_usable(self, link: OpenedLink, age_seconds: float) -> bool:
        now = self._clock.seconds()
        is_unchanged = link.counters == self._counters_of(link.digest)
        return is_unchanged and now < min(link.expires_at, link.read_at + age_seconds)

    def _counters_of(self, digest: bytes) -> tuple[int, int]:
        """Return counters that change when another process, or this one, revokes a link."""
        return self._coordination.counter(digest), self._revocations

    async def _read(self, code: str, digest: bytes) -> OpenedLink:
        counters = self._counters_of(digest)
        stored = await self._repository.find(digest)
        if stored is None:
            raise NotFound("there is no such short link")
        now, ended = self._clock.seconds(), Gone("this short link has expired or was revoked")
        if stored.sealed is None:
            raise ended
        try:
            target = LinkTarget.decode(self._cipher().unseal_link(code, stored.sealed))
        except SnapshotUnreadable as error:
            raise Gone(error.detail) from None
        left = min(stored.expires_at, target.expires_at) - self._wall_clock()
        if left <= 0:
            raise ended
        link = self._opened[digest] = OpenedLink(stored.id, digest, target, counters, now, now + left)
        return link

    async def _find_target(self, request: LinkRequest, client: str) -> tuple[LinkTarget, str]:
        """Return the target of a URL, and the suffix of its link, if the URL is served now."""
        ref, route = self._own_urls.parse(request.url)
        is_script = ref.kind is Kind.IPXE_SCRIPT
        if is_script:  # its arguments must be there too
            await self._images.get_customization(Reader(client, route.credentials, ref))
            ref = attrs.evolve(ref, kind=Kind.PXE_INITRD)
        composed = await self._images.get(ImageRequest(Reader(client, route.credentials, ref)))
        version, pin = composed.version, None
        assert version.ref.needs_customization  # noqa: S101 - as the requested reference does
        if request.pinned:
            snapshot = version.snapshot
            if snapshot is None or snapshot.generation < 0:
                raise Unavailable("the image could not be stored, so that no link can be pinned to it")
            pin = PinnedVersion(snapshot.generation, version.base.sha256)
        expires_at = self._wall_clock() + request.expires_in
        target = LinkTarget(version.ref, route.credentials, pin, expires_at)
        return target, SCRIPT if is_script else ISO if target.is_iso else INITRD

    def _kept_snapshot(self, target: LinkTarget) -> tuple[bytes, int] | None:
        ref, pin = target.ref, target.pin
        if pin is None or ref.kind is None:
            return None
        kind = ref.kind.customization_kind.value
        return self._cipher().key_of(ref.infra_env_id, kind, target.credentials), pin.generation
