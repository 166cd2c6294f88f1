"""The routes of the read-only OCI registry: images by the paths of their URLs. Pure.

``/byid/INFRA_ENV/VERSION/ARCH/full.iso`` is the repository ``byid/INFRA_ENV/VERSION/ARCH/full.iso``, whose
only tag is ``latest``: a request for a blob, which has no tag, names its image then, too.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import NotFound
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.http.routes import REGISTRY_HANDLER, ImageRoute, claims_of, parse_route

if TYPE_CHECKING:
    from collections.abc import Mapping

TAG = "latest"
_PREFIX = "/v2/"
_DIGEST = re.compile("sha256:([0-9a-f]{64})")
_OBJECT = re.compile(r"/v2/(byid/[^?]+)/(manifests|blobs|tags)/([^/?]+)")


class RegistryObject(Enum):
    """What is asked for."""

    ROOT = ""
    CATALOG = "_catalog"
    TAGS = "tags"
    MANIFEST = "manifests"
    BLOB = "blobs"


@attrs.frozen
class RegistryRoute:
    """A request to the registry.

    Args:
        image: of the repository; None: of no repository.
        repository: its name.
        digest: 32 bytes; None: that of the only tag.
        has_credentials: the request has an ``Authorization``, possibly without user and password.
    """

    kind: RegistryObject
    image: ImageRoute | None = None
    repository: str = ""
    digest: bytes | None = None
    has_credentials: bool = False


def parse_registry_route(target: str, headers: Mapping[str, str]) -> RegistryRoute | None:
    """Return what a request target asks the registry for; None: it is none of its paths.

    Args:
        target: in origin form; a registry's paths begin at the root.
        headers: field values by lower-case name.

    Raises:
        NotFound: there is no such repository, tag or digest.
    """
    path = target.partition("?")[0]
    if not path.startswith(_PREFIX):
        return None
    authorization = headers.get("authorization")
    has_credentials = authorization is not None
    if path in {_PREFIX, f"{_PREFIX}_catalog"}:
        return RegistryRoute(RegistryObject(path.removeprefix(_PREFIX)), has_credentials=has_credentials)
    match = _OBJECT.fullmatch(path)
    if match is None:
        raise NotFound("there is no such repository; one is byid/INFRA_ENV/VERSION/ARCH/full.iso")
    repository, kind, name = match[1], RegistryObject(match[2]), match[3]
    image = parse_route(f"/{repository}", {})
    if not isinstance(image, ImageRoute) or image.document:
        raise NotFound("there is no such repository")
    digest = _DIGEST.fullmatch(name)
    if digest is None and name != {RegistryObject.MANIFEST: TAG, RegistryObject.TAGS: "list"}.get(kind):
        raise NotFound(f"not found; the only tag is {TAG}, and digests are of SHA-256")
    image = attrs.evolve(image, handler=REGISTRY_HANDLER, credentials=_credentials(authorization))
    return RegistryRoute(
        kind, image, repository, bytes.fromhex(digest[1]) if digest else None, has_credentials
    )


def _credentials(authorization: str | None) -> Credentials | None:
    """Return the password of Basic as what the image's URL would have; other schemes as they are."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return Credentials(CredentialScheme.AUTHORIZATION, authorization) if authorization else None
    text = ""
    with suppress(ValueError):
        text = base64.b64decode(value, validate=True).decode("ascii")
    user, _, password = text.partition(":")
    if not password or not password.isprintable() or " " in password:  # it becomes a header field upstream
        return None
    claims = claims_of(password) or {}
    is_token = "infra_env_id" not in claims and ("sub" in claims or user == "image_token")
    return Credentials(CredentialScheme.IMAGE_TOKEN if is_token else CredentialScheme.API_KEY, password)
