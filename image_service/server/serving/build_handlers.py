"""Builds the request handlers from settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.core.images.reference import ISOS, Kind
from image_service.server.http.cors import Cors
from image_service.server.serving.digests import Digests
from image_service.server.serving.image_responses import ImageResponses
from image_service.server.serving.ipxe_scripts import IpxeScripts
from image_service.server.serving.pages import Pages
from image_service.server.serving.registry import Registry
from image_service.server.serving.request_handler import ImageRequestHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.reference import StreamRef
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.boot_progress.recording import ReadRecorder
    from image_service.server.links.links import Links
    from image_service.server.serving.pages import Page
    from image_service.server.serving.signed_statements import FindOrigin
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.settings.network import ListenSettings


def build_request_handlers(  # noqa: PLR0913 - four parts that other packages have
    parts: PartsStack,
    settings: ListenSettings,
    images: ImageFinder,
    links: Links,
    reads: ReadRecorder,
    *,
    get_base_url: Callable[[], str],
    get_plain_url: Callable[[], str] | None,
    unready: Callable[[], str],
    impairment: Callable[[], str],
    metrics: Callable[[], Page | Deferred[Page]] | None,
    base_images: Callable[[], bytes] | None,
    mirror: Callable[[StreamRef], BootImage],
    get_signing_keys: Callable[[], SigningKeys] | None,
    find_origin: FindOrigin,
) -> tuple[ImageRequestHandler, ImageRequestHandler]:
    """Return the request handler of the port for images, and that of the port for plain HTTP.

    Args:
        get_plain_url: as ``get_base_url``, for the port for plain HTTP; None: the host by which a client has
            reached it is in its iPXE scripts.
        get_signing_keys: returns the keys of statements as they are now; None: nothing is signed.
        find_origin: returns where a base image came from.
    """
    digests = Digests(parts.reactor, parts.in_thread_pool(1, "digest", low_priority=True))
    parts.push_async_callback(digests.stop)
    statements = None
    if get_signing_keys is not None:
        # Imported here because a service that signs nothing does not need it.
        from image_service.server.serving.statements import Statements  # noqa: PLC0415

        statements = Statements(images.snapshots, digests, get_signing_keys, find_origin)
    pages = Pages(
        unready,
        settings.base_path,
        impairment=impairment,
        metrics=metrics,
        base_images=base_images,
        signing_keys=get_signing_keys,
    )
    responses = ImageResponses(images, digests, reads, statements)
    make = partial(
        ImageRequestHandler,
        images,
        responses,
        pages,
        settings.base_path,
        links=links,
        cors=Cors(settings.allowed_origins) if settings.allowed_origins else None,
        mirror=mirror,
        registry=Registry(images, digests, responses) if settings.serves_registry else None,
    )
    withheld: set[Kind] = set()
    if not settings.http_serves_isos:
        withheld.update(ISOS)
    if not settings.http_serves_initrd:
        withheld.add(Kind.PXE_INITRD)
    scripts = IpxeScripts(images, get_base_url, settings.base_path, uses_host=False)
    plain_scripts = IpxeScripts(
        images,
        get_plain_url or get_base_url,
        settings.base_path,
        uses_host=get_plain_url is None,
        serves_isos=settings.http_serves_isos,
    )
    return make(scripts=scripts), make(scripts=plain_scripts, withheld=withheld)
