"""The OpenAPI document of the listeners for clients."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from image_service import __version__
from image_service.common.openapi.document import (
    ApiDescription,
    OperationDescription,
    QueryParameter,
    openapi_document,
)

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas

_STATEMENT_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# The last two are of its digest and its statement.
_IMAGE = ("application/octet-stream", "multipart/byteranges", "text/plain", _STATEMENT_TYPE)
_VERSION = QueryParameter(
    "version",
    "version of a base image, OpenShift version or stream",
    {"type": "string", "minLength": 1},
    required=True,
)
_ARCHITECTURE = QueryParameter("arch", "CPU architecture; x86_64")
_DIGEST = QueryParameter(
    "digest", "sha256: the digest of the image is returned, not the image", {"enum": ["sha256", ""]}
)
_STATED = QueryParameter(
    "statement",
    "intoto: the signed statement of the image is returned, not the image; 404 without SIGNING_KEY_FILE",
    {"enum": ["intoto", ""]},
)
_KINDS = ("full-iso", "minimal-iso", "disconnected-iso", "full", "minimal")
_TYPE = QueryParameter("type", "kind of image", {"enum": _KINDS}, required=True)
_CREDENTIALS = (
    QueryParameter("api_key", "credential for assisted-service; none"),
    QueryParameter(
        "image_token", "credential for assisted-service; none", {"type": "string", "pattern": "^[!-~]*$"}
    ),
)
_OPTIONAL = (
    QueryParameter("version", "as of other images; that of the infra-env"),
    QueryParameter("arch", "CPU architecture; that of the infra-env"),
    QueryParameter("type", "kind of image; that of the infra-env", {"enum": _KINDS}),
)
_STREAM = ("application/json", "application/yaml", *_IMAGE, "application/x-xz")

_ISO_OR_CHECKSUMS = "an ISO, or with the file SHA256SUMS the digests of all"

# Path, operationId, summary and parameters of each image or file of one.
_IMAGES: tuple[tuple[str, str, str, tuple[QueryParameter, ...]], ...] = (
    ("/images/{infra_env}", "Image", "an ISO", (_TYPE, _VERSION, _ARCHITECTURE, *_CREDENTIALS)),
    ("/byid/{infra_env}/{version}/{arch}/{file}", "ImageById", _ISO_OR_CHECKSUMS, _CREDENTIALS),
    ("/bytoken/{token}/{version}/{arch}/{file}", "ImageByToken", _ISO_OR_CHECKSUMS, ()),
    ("/byapikey/{api_key}/{version}/{arch}/{file}", "ImageByApiKey", _ISO_OR_CHECKSUMS, ()),
    (
        "/images/{infra_env}/pxe-initrd",
        "PxeInitrd",
        "the initrd of a base image with the customization of an infra-env",
        (_VERSION, _ARCHITECTURE, *_CREDENTIALS),
    ),
    (
        "/images/{infra_env}/s390x-initrd-addrsize",
        "InitrdAddrsize",
        "load address and size of that initrd",
        (_VERSION, *_CREDENTIALS),
    ),
    (
        "/images/{infra_env}/ipxe",
        "IpxeScript",
        "the iPXE script that boots the kernel and the initrd of an infra-env",
        (_VERSION, _ARCHITECTURE, *_CREDENTIALS),
    ),
    (
        "/s/{file}",
        "Link",
        "a file of a short link: CODE.iso, CODE.img, CODE.ipxe or CODE.vmlinuz",
        (),
    ),
    (
        "/boot-artifacts/{artifact}",
        "Artifact",
        "kernel, rootfs or ins-file of a base image",
        (_VERSION, _ARCHITECTURE),
    ),
    ("/boot-artifacts/{version}/{arch}/{file}", "ArtifactFile", "a file of a base image", ()),
    ("/clusters/{cluster}/downloads/image", "ClusterImage", "an ISO", _OPTIONAL),
    ("/api/assisted-install/v1/clusters/{cluster}/downloads/image", "ClusterImageV1", "an ISO", _OPTIONAL),
    ("/api/assisted-install/v2/clusters/{cluster}/downloads/image", "ClusterImageV2", "an ISO", _OPTIONAL),
)
_STREAMS = (
    ("/streams/{document}", "Stream", "the metadata of a stream"),
    ("/streams/{stream}/{document}", "StreamDocument", "a document of a stream"),
    ("/streams/{stream}/{release}/{arch}/{file}", "StreamFile", "a file of a stream's release"),
)
_PAGES = (
    ("/health", "Health", "respond with 503 and the reason while no image can be served", "text/plain"),
    ("/live", "Live", "respond while the process does", "text/plain"),
    ("/metrics", "Metrics", "show the metrics; only without an administrative listener", "text/plain"),
    ("/images", "Images", "list base images; only without an administrative listener", "application/json"),
    (
        "/boot-artifacts/{version}/{arch}/SHA256SUMS",
        "Checksums",
        "show the digests of the files of a base image",
        "text/plain",
    ),
    (
        "/.well-known/image-service-signing-keys.pem",
        "SigningKeys",
        "show the public keys of statements; only with SIGNING_KEY_FILE",
        "application/x-pem-file",
    ),
    ("/openapi.json", "Openapi", "show this document", "application/json"),
)
_ERROR_SCHEMAS: Schemas = {
    "Error": {
        "type": "object",
        "required": ["title", "status", "code", "detail", "id"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string"},
            "detail": {"type": "string"},
            "id": {"type": "string", "description": "of the request, as the log has it"},
        },
    }
}


@cache
def render_openapi(base_path: str) -> bytes:
    """Return the document, rendered once: that takes longer than the rest of the start.

    Args:
        base_path: path of the service's base URL, without a final slash.
    """
    description = ApiDescription(
        "image-service",
        __version__,
        "Hands out boot images of CoreOS, customized while they are read.",
        (base_path, "") if base_path else ("",),
        error_type="application/problem+json",
        security_schemes={"Authorization": {"type": "apiKey", "in": "header", "name": "Authorization"}},
    )
    document = openapi_document(description, _operations(), _ERROR_SCHEMAS)
    return json.dumps(document, indent=2).encode() + b"\n"


def _operations() -> list[OperationDescription]:
    """Return the operations; each path also has HEAD and OPTIONS, which are not listed."""
    images = (
        OperationDescription(
            "GET",
            path,
            f"get{name}",
            f"download {summary}",
            other_statuses=(206, 304),
            content_types=_IMAGE,
            query=(*query, _DIGEST, _STATED),
        )
        for path, name, summary, query in _IMAGES
    )
    streams = (
        OperationDescription(
            "GET", path, f"get{name}", f"download {summary}", other_statuses=(206, 304), content_types=_STREAM
        )
        for path, name, summary in _STREAMS
    )
    pages = (
        OperationDescription("GET", path, f"get{name}", summary, content_types=(content_type,))
        for path, name, summary, content_type in _PAGES
    )
    return [*images, *streams, *pages]
