"""Stream metadata: what a CoreOS stream publishes of its newest release (coreos/stream-metadata-go). Pure.

Read as far as it is used, and that strictly::

    stream                                    its name
    metadata.last-modified                    date, RFC 3339
    architectures.ARCH                        RPM architecture name
      .artifacts.metal.release                version of the OS build
      .artifacts.metal.formats.iso.disk       the live ISO
      .artifacts.metal.formats.pxe            kernel, initramfs, rootfs: files of the ISO

Each artifact has a ``location``, a ``sha256`` and, in the streams of Fedora, a ``signature``: the URL of a
detached OpenPGP signature. Other members are ignored. An architecture may lack all of it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import attrs

from image_service.coreos.names import VERSION, VERSION_FAULT, is_web_url
from image_service.errors import StreamMetadataInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Document: TypeAlias = Mapping[str, object]

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""Far beyond real documents, which have some ten to some hundred KiB."""

_MAX_URL = 2048
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Needs no escape in a URL, and is neither hidden nor a directory.
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+-]{0,199}")
# date-time of RFC 3339 in UTC, as stream-metadata-go writes it
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")
_METAL = ("artifacts", "metal")


@attrs.frozen
class StreamArtifact:
    """One file of a release.

    Args:
        location: absolute URL, ``http`` or ``https``, whose path ends in a file name.
        sha256: lower-case hex.
        signature: URL of its detached OpenPGP signature; None: it has none.
    """

    location: str
    sha256: str
    signature: str | None = None

    @property
    def name(self) -> str:
        """What it is called where it is published."""
        return file_name(self.location)


@attrs.frozen
class Release:
    """What a stream offers for one architecture.

    Args:
        architecture: RPM architecture name.
        version: of the OS build.
        published: when the metadata was written that first told of it, UTC, whole seconds.
        iso: the live ISO for bare metal.
        kernel: that of the ISO, by itself; None: it is not published so.
        initramfs: likewise.
        rootfs: likewise.
    """

    architecture: str
    version: str
    published: datetime
    iso: StreamArtifact
    kernel: StreamArtifact | None = None
    initramfs: StreamArtifact | None = None
    rootfs: StreamArtifact | None = None


def file_name(url: str) -> str:
    """Give the last segment of a URL's path."""
    return urlsplit(url).path.rpartition("/")[2]


def parse_stream(text: bytes) -> Document:
    """Read stream metadata, as far as it concerns the whole stream.

    Args:
        text: JSON.

    Returns:
        the document.

    Raises:
        StreamMetadataInvalid: it is none; says where.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise StreamMetadataInvalid(f"$: has {len(text)} bytes; at most {MAX_DOCUMENT_BYTES} are read")
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        raise StreamMetadataInvalid("$: must be JSON in UTF-8") from None
    stream = _Node("$", document)
    stream.member("stream").text()
    stream.member("metadata").member("last-modified").date()
    stream.member("architectures").members()
    return stream.members()


def select_releases(document: Document, architectures: Iterable[str]) -> tuple[Release, ...]:
    """Find what a stream offers for bare metal.

    Args:
        document: as ``parse_stream`` gives it.
        architectures: which are wanted.

    Returns:
        the release for each of them, in their order, but not for those that the stream has no ISO for.

    Raises:
        StreamMetadataInvalid: one that is wanted is not told as it should be; ``detail`` has one line per
            architecture.
    """
    stream = _Node("$", document)
    published = stream.member("metadata").member("last-modified").date()
    releases: list[Release] = []
    faults: list[str] = []
    for architecture in architectures:
        try:
            releases += _releases(stream.member("architectures"), architecture, published)
        except StreamMetadataInvalid as error:
            faults.append(error.detail)
    if faults:
        raise StreamMetadataInvalid("\n".join(faults))
    return tuple(releases)


def metal_members(document: Document) -> Mapping[str, object]:
    """Give what documents have in common that offer the same for bare metal.

    Args:
        document: as ``parse_stream`` gives it.

    Returns:
        by architecture, the part of the document about bare metal.
    """
    architectures = _Node("$", document).member("architectures").members()
    return {name: _metal(value) for name, value in architectures.items()}


def _metal(value: object) -> object:
    for name in _METAL:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _releases(architectures: _Node, architecture: str, published: datetime) -> Iterator[Release]:
    """At most one."""
    metal = _find(architectures, architecture, *_METAL)
    formats = _find(metal, "formats") if metal else None
    iso = _find(formats, "iso") if formats else None
    if metal is None or formats is None or iso is None:
        return
    yield Release(
        architecture=architecture,
        version=metal.member("release").matching(VERSION.fullmatch, VERSION_FAULT),
        published=published,
        iso=_artifact(iso.member("disk")),
        **{name: _artifact(node) for name in _PARTS if (node := _find(formats, "pxe", name))},
    )


_PARTS = ("kernel", "initramfs", "rootfs")


def _artifact(node: _Node) -> StreamArtifact:
    signature = _find(node, "signature")
    return StreamArtifact(
        location=node.member("location").matching(_is_location, _LOCATION_FAULT),
        sha256=node.member("sha256").matching(_SHA256.fullmatch, "must be 64 lower-case hexadecimal digits"),
        signature=signature.matching(_is_artifact_url, _URL_FAULT) if signature else None,
    )


def _is_artifact_url(value: str) -> bool:
    return len(value) <= _MAX_URL and is_web_url(value)


def _is_location(value: str) -> object:
    return _is_artifact_url(value) and _FILE_NAME.fullmatch(file_name(value))


_URL_FAULT = (
    f"must be an http:// or https:// URL of at most {_MAX_URL} characters, escaped, with no fragment and no"
    " user name"
)
_LOCATION_FAULT = (
    f"{_URL_FAULT}, whose path ends in a file name of letters, digits and . _ ~ + -, the first a letter or"
    " digit"
)


@attrs.frozen
class _Node:
    """A value with its place in the document."""

    path: str
    value: object = attrs.field(repr=False)

    def members(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        return self.value

    def member(self, name: str) -> _Node:
        members = self.members()
        node = self._child(name, members.get(name))
        if name not in members:
            raise node.wrong("is missing")
        return node

    def find(self, name: str) -> _Node | None:
        """The member; None: there is none, or it is null."""
        value = self.members().get(name)
        return None if value is None else self._child(name, value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("must be a string")
        return self.value

    def matching(self, is_right: Callable[[str], object], fault: str) -> str:
        text = self.text()
        if not is_right(text):
            raise self.wrong(fault)
        return text

    def date(self) -> datetime:
        text = self.matching(_DATE.fullmatch, _DATE_FAULT)
        try:
            return datetime.fromisoformat(text).replace(microsecond=0)
        except ValueError:
            raise self.wrong(_DATE_FAULT) from None

    def _child(self, name: str, value: object) -> _Node:
        """Names that come from the document are told in the form of JSON, which has no line ends."""
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", name)
        return _Node(f"{self.path}.{name}" if plain else f"{self.path}[{json.dumps(name)[:100]}]", value)

    def wrong(self, fault: str) -> StreamMetadataInvalid:
        return StreamMetadataInvalid(f"{self.path}: {fault}")


_DATE_FAULT = "must be a date as RFC 3339 has it, in UTC, such as 2026-07-21T14:07:12Z"


def _find(node: _Node, *names: str) -> _Node | None:
    """Go down as long as there is something."""
    found: _Node | None = node
    for name in names:
        found = found.find(name) if found else None
    return found
