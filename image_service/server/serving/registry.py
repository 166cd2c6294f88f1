"""A read-only OCI registry (distribution spec 1.1): each image is an artifact with one layer, its ISO.

Nothing is stored for it: the layer is the image as its URL serves it, and the manifest is made of its digest.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from image_service.common.registry.manifests import (
    EMPTY_TYPE,
    MANIFEST_TYPE,
    TITLE,
    BlobDescriptor,
    render_artifact,
)
from image_service.core.errors import NotFound, Unauthorized
from image_service.server.http.response import render_fields
from image_service.server.serving.pages import prepare_page
from image_service.server.serving.registry_routes import TAG, RegistryObject
from image_service.server.snapshots.versions import ImageRequest, ReadMode

if TYPE_CHECKING:
    from image_service.core.images.boot_image import BootImage
    from image_service.server.http.head import Request
    from image_service.server.serving.digests import Digests
    from image_service.server.serving.image_responses import ImageAccess, ImageResponses
    from image_service.server.serving.registry_routes import RegistryRoute
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.transport.exchanges.exchange import PreparedResponse, Subject

ARTIFACT_TYPE = "application/vnd.image-service.iso"
LAYER_TYPE = "application/x-iso9660-image"
EMPTY = b"{}"
_EMPTY_DIGEST = sha256(EMPTY).digest()
_CHALLENGE = (("WWW-Authenticate", 'Basic realm="image-service"'),)
_VERSION = ("Docker-Distribution-API-Version", "registry/2.0")


@attrs.frozen(eq=False)
class Registry:
    """Responds to requests to the registry."""

    _images: ImageFinder
    _digests: Digests
    _responses: ImageResponses

    def respond_without_image(
        self, request: Request, route: RegistryRoute, subject: Subject
    ) -> PreparedResponse:
        """Return the response to a request that names no repository.

        Raises:
            Unauthorized: it is a client's first request, which asks whether credentials are needed: clients
                that are not asked for them here never send any. Those that have none go on without.
        """
        if not route.has_credentials:
            raise Unauthorized(
                "the password is the api_key or the token of the image's URL", fields=_CHALLENGE
            )
        # Whoever knows the path of a repository may ask for it; the list of all would tell it to others.
        document: dict[str, object] = {"repositories": []} if route.kind is RegistryObject.CATALOG else {}
        return prepare_page(request, subject, (json.dumps(document).encode(), "application/json"), _VERSION)

    async def respond(
        self, request: Request, route: RegistryRoute, access: ImageAccess, request_id: str
    ) -> PreparedResponse:
        """Return the response to a request for an image.

        Raises:
            ImageServiceError: the image, its digest or this object of it is not available.
        """
        deadline = self._digests.deadline()
        asked = ImageRequest(access.reader)
        if route.kind is RegistryObject.BLOB and route.digest is not None:
            etag = self._digests.find_etag(route.digest)  # of the version that the manifest was made of
            asked = ImageRequest(access.reader, ReadMode.NAMED, (etag,)) if etag else asked
        try:
            composed = await self._images.get(asked, request_id)
        except Unauthorized as error:
            raise Unauthorized(error.detail, fields=_CHALLENGE) from None
        if route.kind is RegistryObject.TAGS:
            tags = json.dumps({"name": route.repository, "tags": [TAG]}).encode()
            return prepare_page(request, access.subject, (tags, "application/json"), _VERSION)
        if route.kind is RegistryObject.BLOB and route.digest == _EMPTY_DIGEST:
            return _page(request, access.subject, EMPTY, EMPTY_TYPE)
        image = composed.representation.image
        digest = await self._digests.get(image, deadline)
        if route.kind is RegistryObject.MANIFEST:
            manifest = render_manifest(image, digest)
            if route.digest not in {None, sha256(manifest).digest()}:
                raise NotFound("no manifest has this digest; the image may have changed: ask for the tag")
            return _page(request, access.subject, manifest, MANIFEST_TYPE)
        if digest != route.digest:
            raise NotFound("no blob has this digest; the image may have changed: ask for the tag")
        prepared = self._responses.prepare(request, asked, composed, access, deadline)
        if isinstance(prepared, Deferred):
            prepared = await prepared
        return prepared.with_fields(_digest_field(digest))


def render_manifest(image: BootImage, digest: bytes) -> bytes:
    """Return the manifest of an image, the same for the same bytes and name."""
    layer = BlobDescriptor(LAYER_TYPE, _name(digest), image.size, {TITLE: image.file_name})
    return render_artifact(ARTIFACT_TYPE, layer)


def _page(request: Request, subject: Subject, content: bytes, media_type: str) -> PreparedResponse:
    prepared = prepare_page(request, subject, (content, media_type), _VERSION)
    return prepared.with_fields(_digest_field(sha256(content).digest()))


def _digest_field(digest: bytes) -> bytes:
    return render_fields(("Docker-Content-Digest", _name(digest)))


def _name(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"
