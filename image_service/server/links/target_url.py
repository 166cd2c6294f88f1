"""URLs of this service that links are made of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import InvalidParameter
from image_service.core.formats.hosts import host_fault, is_web_url
from image_service.core.images.reference import ImageRef, Kind
from image_service.server.http.routes import ImageRoute, parse_route

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@attrs.frozen
class OwnUrls:
    """Knows which URLs are of this service.

    Args:
        find_base_urls: returns the URLs by which clients may reach it, the present one first, without a slash
            at their end.
        ports: of its listeners; None: of one that it does not have.
    """

    _find_base_urls: Callable[[], Sequence[str]]
    ports: Collection[int | None]

    @property
    def base_url(self) -> str:
        """The URL by which clients reach the service now."""
        return self._find_base_urls()[0]

    def parse(self, url: str) -> tuple[ImageRef, ImageRoute]:
        """Return the image or iPXE script that a URL names, as its reference and its route.

        Raises:
            InvalidParameter: it is not a URL of this service, or its file has no links.
            NotFound: this service has no such route.
        """
        route = self.parse_image(url)
        if not isinstance(route.ref, ImageRef):
            raise InvalidParameter(
                "url must be that of an ISO, an initrd for PXE or an iPXE script of an infra-env; all else"
                " needs no credentials, or has a short link already"
            )
        if route.ref.kind is Kind.INITRD_ADDRSIZE:
            raise InvalidParameter("there are no short links for s390x-initrd-addrsize")
        return route.ref, route

    def parse_image(self, url: str) -> ImageRoute:
        """Return the route of the image, or of the file of a base image, that a URL names.

        Raises:
            InvalidParameter: it is not a URL of this service, or names something else.
            NotFound: this service has no such route.
        """
        if not is_web_url(url):
            form = "must be an escaped http or https URL without user name and fragment"
            raise InvalidParameter(f"url {host_fault(url) or form}")
        bases, split = list(map(urlsplit, self._find_base_urls())), urlsplit(url)
        base, port = bases[0], split.port or _PORTS[split.scheme]
        is_own = split.hostname in {*(each.hostname for each in bases), *_LOOPBACK}
        if not is_own or port not in {base.port or _PORTS[base.scheme], *self.ports}:
            raise InvalidParameter(f"url is not of this service, whose URLs begin with {self.base_url}")
        target = f"{split.path}?{split.query}" if split.query else split.path
        route = parse_route(target, {}, base.path)
        if not isinstance(route, ImageRoute) or route.document:
            raise InvalidParameter(
                "url must be that of an image, of an iPXE script or of a file of a base image; documents"
                " about them have no links"
            )
        return route
