"""Import manifests of tests, and origins that serve their parts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from image_service.common.transfer.manifest import ImportManifest, ManifestPart
from tests.server.catalog.origin import Resource

if TYPE_CHECKING:
    from tests.server.catalog.origin import Origin

SECRET = "presigned-query-of-tests"
QUERY = f"?X-Amz-Signature={SECRET}"
PART_BYTES = 64 * 1024


def make_manifest(base_url: str, size: int, part_bytes: int = PART_BYTES) -> ImportManifest:
    """Return the manifest of a raw image whose parts are at ``base_url/INDEX``."""
    parts = [
        ManifestPart(
            index,
            offset,
            min(part_bytes, size - offset),
            f"key {index}",
            *(f"{base_url}/{index}{QUERY}&of={method}" for method in ("HEAD", "GET", "DELETE")),
        )
        for index, offset in enumerate(range(0, size, part_bytes))
    ]
    return ImportManifest("RAW", size, 1, f"{base_url}/manifest{QUERY}", tuple(parts))


def serve_parts(origin: Origin, body: bytes, part_bytes: int = PART_BYTES) -> list[Resource]:
    """Serve the parts of an image at ``/INDEX``, with the ETags of S3."""
    parts = [
        Resource(part, f'"{hashlib.md5(part, usedforsecurity=False).hexdigest()}"')
        for part in (body[at : at + part_bytes] for at in range(0, len(body), part_bytes))
    ]
    for index, part in enumerate(parts):
        origin.serve(f"/{index}", part)
    return parts
