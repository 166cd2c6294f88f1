"""The routes: which image, document or probe a request target names. Pure."""

from __future__ import annotations

import base64
import enum
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote

import attrs

from image_service.core.errors import InvalidParameter, NotFound
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.core.images.reference import (
    DEFAULT_ARCHITECTURE,
    ISOS,
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    Ref,
    StreamConfigMapRef,
    StreamDocumentRef,
    StreamFileRef,
    StreamRef,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_VISIBLE = re.compile(r"[\x21-\x7e]+")


_KIND_BY_TYPE = {kind.value: kind for kind in ISOS} | {"full": Kind.FULL_ISO, "minimal": Kind.MINIMAL_ISO}
_KIND_BY_FILE = {
    "full.iso": Kind.FULL_ISO,
    "minimal.iso": Kind.MINIMAL_ISO,
    "disconnected.iso": Kind.DISCONNECTED_ISO,
    "config.iso": Kind.CONFIG_ISO,
}
_ARTIFACT_BY_NAME = {
    "kernel": BootArtifact.KERNEL,
    "rootfs": BootArtifact.ROOTFS,
    "ins-file": BootArtifact.INS_FILE,
}
CHECKSUMS_FILE = "SHA256SUMS"
"""The name in a directory of the digests of its files."""


class Probe(enum.Enum):
    """The paths for orchestrators and monitoring."""

    HEALTH = "/health"
    LIVE = "/live"
    METRICS = "/metrics"
    IMAGES = "/images"


class PublicDocument(enum.Enum):
    """The paths of the documents that describe the service."""

    HOME = "/"
    OPENAPI = "/openapi.json"
    SIGNING_KEYS = "/.well-known/image-service-signing-keys.pem"


class ImageDocument(enum.Enum):
    """The documents about an image, by the values of their query parameters."""

    DIGEST = "sha256"
    STATEMENT = "intoto"


_DOCUMENT_BY_SUFFIX = {".sha256": ImageDocument.DIGEST, ".intoto.json": ImageDocument.STATEMENT}
# The contract's URLs with a query have no place for the suffix.
_DOCUMENT_BY_PARAMETER = {"digest": ImageDocument.DIGEST, "statement": ImageDocument.STATEMENT}


@attrs.frozen
class ImageRoute:
    """An image, or a file of a base image.

    Args:
        handler: the route's name, for logs and metrics; holds no credential.
        credentials: of the request, to be passed on to assisted-service.
        version_is_parameter: an unknown version makes the request invalid (400) instead of the image unknown
            (404).
        document: requested about the image; None: the image is.
    """

    handler: str
    ref: ImageRef | ArtifactRef
    credentials: Credentials | None = None
    version_is_parameter: bool = False
    document: ImageDocument | None = None


@attrs.frozen
class ChecksumsRoute:
    """The digests of all files of a directory.

    Args:
        handler: as of one of the files.
        files: by their names in the directory; not each need exist.
        credentials: as of one of the files.
    """

    handler: str
    files: Mapping[str, Ref]
    credentials: Credentials | None = None


@attrs.frozen
class MirrorRoute:
    """A document or a file of a mirrored stream.

    Args:
        handler: the route's name, for logs and metrics.
        ref: which document or file; None: streams have none of this name.
    """

    handler: str
    ref: StreamRef | None


@attrs.frozen
class LinkRoute:
    """A short link.

    Args:
        code: the secret part.
        suffix: names one of the files that the link opens; without the dot.
        document: see `ImageRoute`.
    """

    handler: str
    code: str = attrs.field(repr=False)
    suffix: str
    document: ImageDocument | None = None


Route: TypeAlias = PublicDocument | ImageRoute | ChecksumsRoute | LinkRoute | MirrorRoute | Probe
_PROBES = tuple(probe.value for probe in Probe)
_DOCUMENTS = tuple(document.value for document in PublicDocument)


@attrs.frozen
class _Target:
    handler: str
    query: Mapping[str, str] = attrs.field(repr=False)
    authorization: str | None = attrs.field(repr=False)

    @property
    def architecture(self) -> str:
        return rpm_architecture(self.query.get("arch") or DEFAULT_ARCHITECTURE)

    def credentials(self, token_in_path: str | None = None) -> Credentials | None:
        """Return the first credential of the request, in the contract's order."""
        if api_key := self.query.get("api_key"):
            return Credentials(CredentialScheme.API_KEY, api_key)
        if token := token_in_path or self.query.get("image_token"):
            if _VISIBLE.fullmatch(token) is None:  # it becomes a header field upstream
                raise InvalidParameter("the image token contains characters that no token has")
            return Credentials(CredentialScheme.IMAGE_TOKEN, token)
        if self.authorization:
            return Credentials(CredentialScheme.AUTHORIZATION, self.authorization)
        return None

    def required(self, parameter: str) -> str:
        value = self.query.get(parameter)
        if not value:
            raise InvalidParameter(f"the query parameter {parameter} is missing")
        return value

    def by_query(self, infra_env_id: str) -> ImageRoute:
        kind_name, version = self.required("type"), self.required("version")
        ref = ImageRef(_uuid(infra_env_id), version, self.architecture, _kind(kind_name))
        return ImageRoute(self.handler, ref, self.credentials())

    def by_id(self, infra_env_id: str, *path: str) -> ImageRoute | ChecksumsRoute:
        return self._iso(_uuid(infra_env_id), self.credentials(), *path)

    def by_api_key(self, api_key: str, *path: str) -> ImageRoute | ChecksumsRoute:
        return self._iso(_subject(api_key), Credentials(CredentialScheme.API_KEY, api_key), *path)

    def by_token(self, token: str, *path: str) -> ImageRoute | ChecksumsRoute:
        return self._iso(_subject(token), self.credentials(token), *path)

    def _iso(
        self, infra_env_id: str, credentials: Credentials | None, version: str, architecture: str, name: str
    ) -> ImageRoute | ChecksumsRoute:
        files = {
            file: ImageRef(infra_env_id, version, rpm_architecture(architecture), kind)
            for file, kind in _KIND_BY_FILE.items()
        }
        return self._file(files, name, credentials)

    def _file(
        self, files: Mapping[str, Ref], name: str, credentials: Credentials | None = None
    ) -> ImageRoute | ChecksumsRoute:
        """Return the route of a file of a directory."""
        if name == CHECKSUMS_FILE:
            return ChecksumsRoute(self.handler, files, credentials)
        if name not in files:
            raise NotFound(f"not found; the files are {', '.join(files)}, {CHECKSUMS_FILE}")
        return ImageRoute(self.handler, files[name], credentials)

    def by_cluster(self, infra_env_id: str) -> ImageRoute:
        kind_name = self.query.get("type")
        kind = _kind(kind_name) if kind_name else None
        version, architecture = self.query.get("version") or None, self.query.get("arch")
        ref = ImageRef(_uuid(infra_env_id), version, rpm_architecture(architecture or "") or None, kind)
        return ImageRoute(self.handler, ref, self.credentials())

    def pxe_initrd(self, infra_env_id: str) -> ImageRoute:
        version = self.required("version")
        ref = ImageRef(_uuid(infra_env_id), version, self.architecture, Kind.PXE_INITRD)
        return ImageRoute(self.handler, ref, self.credentials(), version_is_parameter=True)

    def ipxe_script(self, infra_env_id: str) -> ImageRoute:
        version = self.required("version")
        ref = ImageRef(_uuid(infra_env_id), version, self.architecture, Kind.IPXE_SCRIPT)
        return ImageRoute(self.handler, ref, self.credentials(), version_is_parameter=True)

    def short_link(self, code: str, suffix: str) -> LinkRoute:
        return LinkRoute(self.handler, code, suffix)

    def initrd_addrsize(self, infra_env_id: str) -> ImageRoute:
        ref = ImageRef(_uuid(infra_env_id), self.required("version"), "s390x", Kind.INITRD_ADDRSIZE)
        return ImageRoute(self.handler, ref, self.credentials(), version_is_parameter=True)

    def artifact_by_query(self, name: str) -> ImageRoute:
        ref = ArtifactRef(_ARTIFACT_BY_NAME[name], self.required("version"), self.architecture)
        return ImageRoute(self.handler, ref, version_is_parameter=True)

    def artifact(self, version: str, architecture: str, name: str) -> ImageRoute | ChecksumsRoute:
        cpu = rpm_architecture(architecture)
        return self._file({each.value: ArtifactRef(each, version, cpu) for each in BootArtifact}, name)


def names_probe(target: str) -> bool:
    """Return True for a request target that names a probe, below any base path; no image's path ends so."""
    return target.partition("?")[0].endswith(_PROBES)


def parse_route(target: str, headers: Mapping[str, str], base_path: str = "") -> Route:
    """Return the route that a request target names.

    Args:
        target: in origin form.
        headers: field values by lower-case name; only ``authorization`` is read.
        base_path: path of the service's base URL, without a final slash; the routes exist below it and at the
            root.

    Raises:
        NotFound: there is no such route, or its identifier is invalid.
        InvalidParameter: a query parameter is missing or invalid.
    """
    raw_path, _, raw_query = target.partition("?")
    path = raw_path.removeprefix(base_path) if raw_path.startswith(f"{base_path}/") else raw_path
    query = dict(reversed(parse_qsl(raw_query, encoding="utf-8", errors="replace")))
    if path in _PROBES:
        return Probe(path)
    if path in _DOCUMENTS:
        return PublicDocument(path)
    for handler, pattern in _MIRROR_ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            return MirrorRoute(handler, _stream_ref(tuple(map(_decode, match.groups()))))
    suffix = next((suffix for suffix in _DOCUMENT_BY_SUFFIX if path.endswith(suffix)), "")
    for handler, pattern, make in _ROUTES:
        match = pattern.fullmatch(path.removesuffix(suffix))
        if match is not None:
            request = _Target(handler, query, headers.get("authorization"))
            route = make(request, *map(_decode, match.groups()))
            document = _DOCUMENT_BY_SUFFIX[suffix] if suffix else _document_of(query)
            if not isinstance(route, ChecksumsRoute):
                return attrs.evolve(route, document=document)
            if document is None:
                return route
            raise NotFound(f"{CHECKSUMS_FILE} has neither digest nor statement; its files have")
    # Firmware and scripts join a base URL and a path with one too many.
    raise NotFound("not found; the path has two slashes in a row" if "//" in path else "not found")


def _document_of(query: Mapping[str, str]) -> ImageDocument | None:
    found = None
    for parameter, document in _DOCUMENT_BY_PARAMETER.items():
        value = query.get(parameter)
        if value not in {None, document.value}:
            raise InvalidParameter(
                f"the query parameter {parameter} is invalid; the only value is {document.value}"
            )
        found = found or (document if value is not None else None)
    return found


def _decode(segment: str) -> str:
    with suppress(UnicodeDecodeError):
        return unquote(segment, errors="strict")
    raise NotFound("not found")


def _stream_ref(segments: tuple[str, ...]) -> StreamRef | None:
    match segments:
        case ("configmap.yaml",):
            return StreamConfigMapRef(None)
        case (name,) if name.endswith(".json"):
            return StreamDocumentRef(name.removesuffix(".json"))
        case (stream, "configmap.yaml"):
            return StreamConfigMapRef(stream)
        case (stream, version, architecture, name):
            return StreamFileRef(stream, version, rpm_architecture(architecture), name)
    return None


def _path(template: str) -> re.Pattern[str]:
    return re.compile(template.replace("*", "([^/]+)"))


_ROUTES: tuple[tuple[str, re.Pattern[str], Callable[..., ImageRoute | ChecksumsRoute | LinkRoute]], ...] = (
    ("/images/:imageID", _path("/images/*"), _Target.by_query),
    ("/byid/:token", _path("/byid/*/*/*/*"), _Target.by_id),
    ("/byapikey/:token", _path("/byapikey/*/*/*/*"), _Target.by_api_key),
    ("/bytoken/:token", _path("/bytoken/*/*/*/*"), _Target.by_token),
    ("/images/:imageID/pxe-initrd", _path("/images/*/pxe-initrd"), _Target.pxe_initrd),
    (
        "/images/:imageID/s390x-initrd-addrsize",
        _path("/images/*/s390x-initrd-addrsize"),
        _Target.initrd_addrsize,
    ),
    ("/images/:imageID/ipxe", _path("/images/*/ipxe"), _Target.ipxe_script),
    ("/s/:code", re.compile(r"/s/([^/.]+)\.(iso|img|ipxe|vmlinuz)"), _Target.short_link),
    *(
        (f"/boot-artifacts/{name}", _path(f"/boot-artifacts/({name})"), _Target.artifact_by_query)
        for name in _ARTIFACT_BY_NAME
    ),
    ("/boot-artifacts/:version/:arch/:file", _path("/boot-artifacts/*/*/*"), _Target.artifact),
    (
        "/clusters/:clusterID/downloads/image",
        _path("(?:/api/assisted-install/v[12])?/clusters/*/downloads/image"),
        _Target.by_cluster,
    ),
)
_MIRROR_ROUTES = (
    ("/streams/:document", _path("/streams/*")),
    ("/streams/:stream/:document", _path("/streams/*/*")),
    ("/streams/:stream/:release/:arch/:file", _path("/streams/*/*/*/*")),
)
REGISTRY_HANDLER = "/v2/:repository"
HANDLERS = (
    *(handler for handler, _, _ in _ROUTES),
    *(handler for handler, _ in _MIRROR_ROUTES),
    REGISTRY_HANDLER,
)
"""The names of all routes: assisted-image-service's for its own, ours for all others."""


def _uuid(text: str) -> str:
    if _UUID.fullmatch(text) is None:
        raise NotFound("the identifier of the infra-env in the path is not a lower-case UUID")
    return text


def _kind(name: str) -> Kind:
    kind = _KIND_BY_TYPE.get(name)
    if kind is None:
        raise InvalidParameter(
            f"the query parameter type is invalid; it is one of {', '.join(_KIND_BY_TYPE)}"
        )
    return kind


def claims_of(token: str) -> dict[str, object] | None:
    """Return the claims of a JWT (RFC 7519), whose signature is not checked; None: it is none."""
    with suppress(ValueError, RecursionError):  # neither base64url nor UTF-8 nor JSON
        _header, payload, _signature = token.split(".")
        claims = json.loads(
            base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        )
        if isinstance(claims, dict):
            return claims
    return None


def _subject(token: str) -> str:
    """Return the infra-env that a JWT is for; assisted-service verifies the signature."""
    claims = claims_of(token)
    if claims is None:
        raise NotFound("the token in the path is not a JWT")
    subject = claims.get("sub") or claims.get("infra_env_id")
    if not isinstance(subject, str):
        raise NotFound("the token in the path has no infra-env (sub or infra_env_id)")
    return _uuid(subject)
