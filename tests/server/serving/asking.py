"""A request handler by itself, asked as a connection would ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, succeed

from image_service.server.boot_progress.recording import ReadRecorder
from image_service.server.catalog.build_catalog import BaseOrigin
from image_service.server.http.head import Request
from image_service.server.serving.digests import Digests
from image_service.server.serving.image_responses import ImageResponses
from image_service.server.serving.ipxe_scripts import IpxeScripts
from image_service.server.serving.pages import Pages
from image_service.server.serving.registry import Registry
from image_service.server.serving.request_handler import ImageRequestHandler
from image_service.server.serving.statements import Statements
from image_service.server.transport.exchanges.exchange import PreparedResponse
from tests.server.links.linking import MemoryLinks, links_of
from tests.server.snapshots.doubles import BASE_URL, ID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from image_service.core.images.reference import Kind
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.http.cors import Cors
    from image_service.server.links.links import Links
    from tests.server.snapshots.doubles import World

TARGET = f"/byid/{ID}/4.20/x86_64/full.iso"


def _at_once(work: Callable[[], bytes]) -> Deferred[bytes]:
    return succeed(work())


@attrs.define(eq=False)
class Service:
    """A request handler in a world that counts.

    Args:
        world: what images are made of.
        ready: whether it says that it is.
        cors: which pages may read its answers.
        withheld: kinds that its listener does not serve.
        hashes: takes digests.
        keys: sign statements, and are listed; None: nothing is signed.
        origin: of all base images.
        is_registry: whether it is one.
    """

    world: World
    ready: bool = True
    cors: Cors | None = None
    withheld: Collection[Kind] = ()
    hashes: Callable[[Callable[[], bytes]], Deferred[bytes]] = _at_once
    keys: SigningKeys | None = None
    origin: BaseOrigin = attrs.field(factory=lambda: BaseOrigin(None, None))
    is_registry: bool = False
    stored_links: MemoryLinks = attrs.field(factory=MemoryLinks)
    links: Links = attrs.field(init=False)
    handler: ImageRequestHandler = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.links = links_of(self.world, self.stored_links)
        self.handler = self.make_handler(self.links)

    def make_handler(self, links: Links, scripts: IpxeScripts | None = None) -> ImageRequestHandler:
        """Return the handler of one listener."""
        base_url = f"{BASE_URL}/base"
        digests = Digests(self.world.clock, self.hashes)
        reads = ReadRecorder(self.world.clock.seconds)
        images = self.world.images
        statements = None
        if self.keys is not None:
            statements = Statements(images.snapshots, digests, self._get_keys, lambda _: self.origin)
        pages = Pages(
            lambda: "" if self.ready else "no image yet",
            "/base",
            base_images=lambda: b'{"images": []}',
            signing_keys=self._get_keys if self.keys else None,
        )
        responses = ImageResponses(images, digests, reads, statements)
        return ImageRequestHandler(
            images,
            responses,
            pages,
            "/base",
            links=links,
            scripts=scripts or IpxeScripts(self.world.images, lambda: base_url, "/base", uses_host=False),
            withheld=self.withheld,
            cors=self.cors,
            registry=Registry(self.world.images, digests, responses) if self.is_registry else None,
        )

    def _get_keys(self) -> SigningKeys:
        assert self.keys is not None
        return self.keys

    def ask(
        self, target: str = TARGET, method: str = "GET", *, overloaded: bool = False, **fields: str
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Ask; underscores in names of fields stand for hyphens."""
        headers = {"host": "h", **{name.replace("_", "-"): value for name, value in fields.items()}}
        request = Request(method, target, headers, keep_alive=True)
        return self.handler.handle(request, "192.0.2.1", overloaded=overloaded)

    def get(self, target: str = TARGET, method: str = "GET", **options: Any) -> PreparedResponse:
        """The answer, which must have come by now."""
        answer = self.ask(target, method, **options)
        if isinstance(answer, PreparedResponse):
            return answer
        (arrived,) = answers_of(answer)
        return arrived

    @property
    def upstream_calls(self) -> int:
        """How many questions assisted-service was asked."""
        return len(self.world.assisted.calls)


def answers_of(asked: PreparedResponse | Deferred[PreparedResponse]) -> list[PreparedResponse]:
    """Where the answer will be; the application promises that there is no failure."""
    found: list[PreparedResponse] = []
    assert isinstance(asked, Deferred)
    asked.addCallback(found.append)
    return found
