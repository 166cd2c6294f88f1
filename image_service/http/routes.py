"""The table of routes: a request target becomes what it names (docs: the contract's URLs). Pure."""

from __future__ import annotations

import base64
import enum
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote

import attrs

from image_service.errors import InvalidParameter, NotFound
from image_service.images.reference import (
    DEFAULT_ARCHITECTURE,
    ISOS,
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    StreamConfigMapRef,
    StreamDocumentRef,
    StreamFileRef,
    StreamRef,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_SEGMENT = r"([^/]+)"

_DIGEST_SUFFIX = ".sha256"

_KIND_BY_TYPE = {kind.value: kind for kind in ISOS} | {"full": Kind.FULL_ISO, "minimal": Kind.MINIMAL_ISO}
_KIND_BY_FILE = {
    "full.iso": Kind.FULL_ISO,
    "minimal.iso": Kind.MINIMAL_ISO,
    "disconnected.iso": Kind.DISCONNECTED_ISO,
}


_ARTIFACT_BY_NAME = {
    "kernel": BootArtifact.KERNEL,
    "rootfs": BootArtifact.ROOTFS,
    "ins-file": BootArtifact.INS_FILE,
}
_ARTIFACT_BY_FILE = {artifact.value: artifact for artifact in BootArtifact}


class Probe(enum.Enum):
    """What an orchestrator asks."""

    HEALTH = "/health"
    LIVE = "/live"
    METRICS = "/metrics"
    IMAGES = "/images"


@attrs.frozen
class ImageRoute:
    """A request for an image, or for a file of a base image.

    Args:
        handler: the route's name, for logs and metrics: assisted-image-service's, where it has the route.
            It holds no credential.
        ref: what is asked for.
        credentials: passed on to assisted-service; None: there are none.
        version_is_parameter: a version that there is not makes the request wrong (400), not absent (404).
        is_digest: not the image is asked for, but its SHA-256.
    """

    handler: str
    ref: ImageRef | ArtifactRef
    credentials: Credentials | None = None
    version_is_parameter: bool = False
    is_digest: bool = False


@attrs.frozen
class MirrorRoute:
    """A request for what is published of a stream.

    Args:
        handler: the route's name, for logs and metrics.
        ref: what is asked for.
    """

    handler: str
    ref: StreamRef


Route: TypeAlias = ImageRoute | MirrorRoute | Probe
_PROBES = frozenset(probe.value for probe in Probe)


@attrs.frozen
class _Context:
    handler: str
    query: Mapping[str, str] = attrs.field(repr=False)
    authorization: str | None = attrs.field(repr=False)

    def credentials(self, token_in_path: str | None = None) -> Credentials | None:
        """The first that the request carries, in the contract's order."""
        if api_key := self.query.get("api_key"):
            return Credentials(CredentialScheme.API_KEY, api_key)
        if token := token_in_path or self.query.get("image_token"):
            return _image_token(token)
        if self.authorization:
            return Credentials(CredentialScheme.AUTHORIZATION, self.authorization)
        return None

    def required(self, parameter: str) -> str:
        value = self.query.get(parameter)
        if not value:
            raise InvalidParameter(f"the query parameter {parameter} is missing")
        return value


def parse_route(target: str, headers: Mapping[str, str], base_path: str = "") -> Route:
    """Find out what a request names.

    Args:
        target: origin form.
        headers: field values by lower-case name; only ``authorization`` matters.
        base_path: the path of the service's base URL, without a slash at its end; everything is served
            below it as well as at the root.

    Returns:
        the image, the file of a stream, or the probe.

    Raises:
        NotFound: there is no such route, or its identifier is none.
        InvalidParameter: a parameter is missing or has no such value.
    """
    raw_path, _, raw_query = target.partition("?")
    path = raw_path.removeprefix(base_path) if raw_path.startswith(f"{base_path}/") else raw_path
    query = dict(reversed(parse_qsl(raw_query, encoding="utf-8", errors="replace")))
    if path in _PROBES:
        return Probe(path)
    for handler, pattern in _MIRROR_ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            return MirrorRoute(handler, _stream_ref(tuple(map(_decode, match.groups()))))
    for handler, pattern, make in _ROUTES:
        match = pattern.fullmatch(path.removesuffix(_DIGEST_SUFFIX))
        if match is not None:
            context = _Context(handler, query, headers.get("authorization"))
            route = make(context, *map(_decode, match.groups()))
            return attrs.evolve(route, is_digest=path.endswith(_DIGEST_SUFFIX) or _asks_for_digest(query))
    raise NotFound("there is nothing at this path")


def _stream_ref(segments: tuple[str, ...]) -> StreamRef:
    match segments:
        case (name,) if name.endswith(".json"):
            return StreamDocumentRef(name.removesuffix(".json"))
        case (stream, "configmap.yaml"):
            return StreamConfigMapRef(stream)
        case (stream, version, architecture, name):
            return StreamFileRef(stream, version, architecture, name)
    raise NotFound(
        "not found; the documents of a stream are STREAM.json, STREAM-RELEASE.json and STREAM/configmap.yaml"
    )


def _asks_for_digest(query: Mapping[str, str]) -> bool:
    """Where a suffix would get lost: most of the contract's URLs end in a query."""
    algorithm = query.get("digest")
    if algorithm not in {None, "sha256"}:
        raise InvalidParameter("the query parameter digest has no such value; it is sha256")
    return algorithm is not None


def _decode(segment: str) -> str:
    with suppress(UnicodeDecodeError):
        return unquote(segment, errors="strict")
    raise NotFound("there is nothing at this path")


def _by_query(context: _Context, infra_env_id: str) -> ImageRoute:
    kind_name, version = context.required("type"), context.required("version")
    architecture = context.query.get("arch") or DEFAULT_ARCHITECTURE
    ref = ImageRef(_uuid(infra_env_id), version, architecture, _kind(kind_name))
    return ImageRoute(context.handler, ref, context.credentials())


def _by_id(context: _Context, infra_env_id: str, version: str, architecture: str, file: str) -> ImageRoute:
    ref = ImageRef(_uuid(infra_env_id), version, architecture, _kind_of_file(file))
    return ImageRoute(context.handler, ref, context.credentials())


def _by_api_key(context: _Context, api_key: str, version: str, architecture: str, file: str) -> ImageRoute:
    ref = ImageRef(_subject(api_key), version, architecture, _kind_of_file(file))
    return ImageRoute(context.handler, ref, Credentials(CredentialScheme.API_KEY, api_key))


def _by_token(context: _Context, token: str, version: str, architecture: str, file: str) -> ImageRoute:
    ref = ImageRef(_subject(token), version, architecture, _kind_of_file(file))
    return ImageRoute(context.handler, ref, context.credentials(token))


def _by_cluster(context: _Context, infra_env_id: str) -> ImageRoute:
    kind_name = context.query.get("type")
    kind = _kind(kind_name) if kind_name else None
    version = context.query.get("version") or None
    ref = ImageRef(_uuid(infra_env_id), version, context.query.get("arch") or None, kind)
    return ImageRoute(context.handler, ref, context.credentials())


def _pxe_initrd(context: _Context, infra_env_id: str) -> ImageRoute:
    architecture = context.query.get("arch") or DEFAULT_ARCHITECTURE
    ref = ImageRef(_uuid(infra_env_id), context.required("version"), architecture, Kind.PXE_INITRD)
    return ImageRoute(context.handler, ref, context.credentials(), version_is_parameter=True)


def _initrd_addrsize(context: _Context, infra_env_id: str) -> ImageRoute:
    ref = ImageRef(_uuid(infra_env_id), context.required("version"), "s390x", Kind.INITRD_ADDRSIZE)
    return ImageRoute(context.handler, ref, context.credentials(), version_is_parameter=True)


def _artifact_by_query(context: _Context, name: str) -> ImageRoute:
    architecture = context.query.get("arch") or DEFAULT_ARCHITECTURE
    ref = ArtifactRef(_ARTIFACT_BY_NAME[name], context.required("version"), architecture)
    return ImageRoute(context.handler, ref, version_is_parameter=True)


def _artifact(context: _Context, version: str, architecture: str, file: str) -> ImageRoute:
    if file not in _ARTIFACT_BY_FILE:
        raise NotFound(f"there is no such file; there are {', '.join(_ARTIFACT_BY_FILE)}")
    ref = ArtifactRef(_ARTIFACT_BY_FILE[file], version, architecture)
    return ImageRoute(context.handler, ref)


_ROUTES: tuple[tuple[str, re.Pattern[str], Callable[..., ImageRoute]], ...] = (
    ("/images/:imageID", re.compile(rf"/images/{_SEGMENT}"), _by_query),
    ("/byid/:token", re.compile(rf"/byid/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}"), _by_id),
    ("/byapikey/:token", re.compile(rf"/byapikey/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}"), _by_api_key),
    ("/bytoken/:token", re.compile(rf"/bytoken/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}"), _by_token),
    ("/images/:imageID/pxe-initrd", re.compile(rf"/images/{_SEGMENT}/pxe-initrd"), _pxe_initrd),
    (
        "/images/:imageID/s390x-initrd-addrsize",
        re.compile(rf"/images/{_SEGMENT}/s390x-initrd-addrsize"),
        _initrd_addrsize,
    ),
    *(
        (f"/boot-artifacts/{name}", re.compile(rf"/boot-artifacts/({name})"), _artifact_by_query)
        for name in _ARTIFACT_BY_NAME
    ),
    (
        "/boot-artifacts/:version/:arch/:file",
        re.compile(rf"/boot-artifacts/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}"),
        _artifact,
    ),
    (
        "/clusters/:clusterID/downloads/image",
        re.compile(rf"(?:/api/assisted-install/v[12])?/clusters/{_SEGMENT}/downloads/image"),
        _by_cluster,
    ),
)
_MIRROR_ROUTES = (
    ("/streams/:document", re.compile(rf"/streams/{_SEGMENT}")),
    ("/streams/:stream/:document", re.compile(rf"/streams/{_SEGMENT}/{_SEGMENT}")),
    (
        "/streams/:stream/:release/:arch/:file",
        re.compile(rf"/streams/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}/{_SEGMENT}"),
    ),
)
HANDLERS = (*(handler for handler, _, _ in _ROUTES), *(handler for handler, _ in _MIRROR_ROUTES))
"""The names of all routes: assisted-image-service's for its own, ours for the last five."""


def _image_token(token: str) -> Credentials:
    """A token that becomes a header field upstream: nothing in it may end or split the field."""
    if _VISIBLE.fullmatch(token) is None:
        raise InvalidParameter("the image token holds characters that no token has")
    return Credentials(CredentialScheme.IMAGE_TOKEN, token)


def _uuid(text: str) -> str:
    if _UUID.fullmatch(text) is None:
        raise NotFound("the path names no infra-env: its identifier is a lower-case UUID")
    return text


def _kind(name: str) -> Kind:
    kind = _KIND_BY_TYPE.get(name)
    if kind is None:
        known = ", ".join(_KIND_BY_TYPE)
        raise InvalidParameter(f"the query parameter type has no such value; it is one of {known}")
    return kind


def _kind_of_file(name: str) -> Kind:
    kind = _KIND_BY_FILE.get(name)
    if kind is None:
        raise NotFound(f"there is no such file; there are {', '.join(_KIND_BY_FILE)}")
    return kind


def _subject(token: str) -> str:
    """The infra-env that a JWT is for (RFC 7519); who checks its signature is assisted-service."""
    claims = None
    with suppress(ValueError, RecursionError):  # neither base64url nor UTF-8 nor JSON
        _header, payload, _signature = token.split(".")
        claims = json.loads(
            base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        )
    # Outside of the decoder's error, which holds the claims and would be this one's context.
    if not isinstance(claims, dict):
        raise NotFound("the token in the path is not a JWT")
    subject = claims.get("sub") or claims.get("infra_env_id")
    if not isinstance(subject, str):
        raise NotFound("the token in the path names no infra-env (sub or infra_env_id)")
    return _uuid(subject)
