"""Stream metadata, in which a CoreOS stream publishes its newest release (coreos/stream-metadata-go). Pure.

OpenShift has it in the ConfigMap ``coreos-bootimages``: ``data.stream`` is the metadata of the default
stream; ``data.streams``, which older versions lack, that of all by name, such as ``rhel-9`` and ``rhel-10``.

Only these members are read, strictly::

    stream                                    its name
    metadata.last-modified                    date, RFC 3339
    architectures.ARCH                        RPM architecture name
      .artifacts.metal.release                version of the OS build
      .artifacts.metal.formats.iso.disk       the live ISO
      .artifacts.metal.formats.pxe            kernel, initramfs, rootfs: files of the ISO
      .artifacts.PLATFORM.formats.FORMAT.disk disk images, if artifacts.PLATFORM.release is that version

PLATFORM is one of `DISK_PLATFORMS`; FORMAT is ``raw``, ``qcow2``, ``vmdk``, ``vhd`` or ``ova``, perhaps with
a compression (``raw.xz``). A disk image that is not valid is left out: the ISO does not depend on it.

Each artifact has a ``location``, a ``sha256`` and, in Fedora's streams, a ``signature``: the URL of a
detached OpenPGP signature; an empty one is none. An architecture may lack all of them. Other members are not
read: a mirror passes them on.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import FormatError, StreamMetadataInvalid
from image_service.core.families.coreos.build_names import VERSION, VERSION_FAULT
from image_service.core.formats.documents.config_map import read_config_map
from image_service.core.formats.documents.json_document import read_json
from image_service.core.formats.hosts import is_web_url

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    Document: TypeAlias = Mapping[str, object]

PAYLOAD = "image-service.payload"
"""A member of documents that come from a release payload: the URL of the ISO in it. Only we write it."""
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""Far more than real documents have: some ten to some hundred KiB."""

_MAX_URL = 2048
_MAX_NAMED = 10  # streams in a message
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Needs no escape in a URL, and is neither hidden nor a directory.
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+-]{0,199}")
# date-time of RFC 3339; stream-metadata-go writes it in UTC
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
DISK_PLATFORMS = ("metal", "qemu", "vmware", "azure", "aws", "openstack")
_METAL = ("artifacts", "metal")
_DISK_FORMAT = re.compile(r"(raw|qcow2|vmdk|vhd|ova)(?:\.(?:xz|gz|zst))?")
_PXE = ("kernel", "initramfs", "rootfs")

_DATE_FAULT = "must be a date as RFC 3339 has it, such as 2026-07-21T14:07:12Z"
_URL_FAULT = (
    f"must be an http:// or https:// URL of at most {_MAX_URL} characters, escaped, with no fragment and no"
    " user name"
)
_LOCATION_FAULT = (
    f"{_URL_FAULT}, whose path ends in a file name of letters, digits and . _ ~ + -, the first a letter or"
    " digit"
)


@attrs.frozen
class StreamArtifact:
    """One file of a release."""

    location: str  # http(s) URL whose path ends in a file name
    sha256: str  # lower-case hex
    signature: str | None = None  # URL of its detached OpenPGP signature

    @property
    def name(self) -> str:
        """The name under which it is published."""
        return _file_name(self.location)


@attrs.frozen
class StreamDisk:
    """A disk image of a release, for one platform."""

    platform: str  # one of `DISK_PLATFORMS`
    format: str  # decompressed: raw, qcow2, vmdk, vhd or ova
    file: StreamArtifact


@attrs.frozen
class OriginalFile:
    """A file of an artifact, as a stream publishes it."""

    platform: str
    release: str  # of the platform
    format: str
    part: str  # ``disk``, ``kernel``, …
    artifact: StreamArtifact
    members: Document = attrs.field(repr=False)


@attrs.frozen
class Release:
    """The newest build of a stream for one architecture."""

    architecture: str  # RPM architecture name
    version: str  # of the OS build
    published: datetime  # date of the first metadata with this release, UTC, whole seconds
    iso: StreamArtifact  # the live ISO for bare metal; the others are files of it, None if not published
    kernel: StreamArtifact | None = None
    initramfs: StreamArtifact | None = None
    rootfs: StreamArtifact | None = None
    disks: tuple[StreamDisk, ...] = ()
    # all that the stream says about the architecture; a release is the same if it says more
    original: Document = attrs.field(factory=dict, eq=False, repr=False)
    payload: str | None = None  # URL of the ISO in a release payload, which has the bytes of its location


@attrs.frozen
class OfferedStream:
    """A stream as a document offers it.

    Args:
        document: its metadata.
        is_default: True if it is the one that an OpenShift version alone means.
        name: in the ConfigMap; empty: it has none.
    """

    document: Document = attrs.field(repr=False)
    is_default: bool = True
    name: str = ""

    def located(self, payload: str | None) -> OfferedStream:
        """Return the stream with its ISO in a release payload; None: at its location."""
        document = {name: value for name, value in self.document.items() if name != PAYLOAD}
        return attrs.evolve(self, document=document if payload is None else {**document, PAYLOAD: payload})


def parse_offer(text: bytes, name: str) -> OfferedStream:
    """Parse stream metadata, or that of the stream of a name in a ConfigMap."""
    _check_size(text)
    try:
        data = read_config_map(text)
    except FormatError as error:
        raise StreamMetadataInvalid(f"$: {error.detail}") from None
    if data is None:
        return OfferedStream(parse_stream(text))
    if "streams" not in data:
        return OfferedStream(_parse_member(data, "stream"))
    streams = _Node("data.streams", _load(data["streams"], "data.streams")).members()
    # Where there is one stream, as in OKD, it may have no name.
    if name not in streams and len(streams) == 1:
        name = "" if "" in streams else name
    document = streams.get(name)
    if document is None:
        named = ", ".join(json.dumps(each)[:100] for each in islice(streams, _MAX_NAMED)) or "none"
        if len(streams) > _MAX_NAMED:
            named += f" and {len(streams) - _MAX_NAMED} more"
        raise StreamMetadataInvalid(f"data.streams: has no stream {name}; there are {named}")
    found = _checked(document, f"data.streams.{name}")
    is_default = len(streams) == 1
    if "stream" in data:
        is_default = offered_members(_parse_member(data, "stream")) == offered_members(found)
    return OfferedStream(found, is_default, name)


def parse_stream(text: bytes) -> Document:
    """Parse stream metadata, and check the members about the whole stream."""
    _check_size(text)
    return _checked(_load(text, "$"), "$")


def _parse_member(data: Mapping[str, str], name: str) -> Document:
    if name not in data:
        raise StreamMetadataInvalid(f"data.{name}: is missing")
    return _checked(_load(data[name], f"data.{name}"), f"data.{name}")


def _check_size(text: bytes) -> None:
    if len(text) > MAX_DOCUMENT_BYTES:
        raise StreamMetadataInvalid(f"$: has {len(text)} bytes; at most {MAX_DOCUMENT_BYTES} are read")


def _load(text: bytes | str, path: str) -> object:
    try:
        return read_json(text)
    except FormatError as error:
        raise StreamMetadataInvalid(f"{path}: {error.detail}") from None


def _checked(document: object, path: str) -> Document:
    stream = _Node(path, document)
    stream.member("stream").text()
    stream.member("metadata").member("last-modified").date()
    stream.member("architectures").members()
    return stream.members()


def select_releases(document: Document, architectures: Iterable[str]) -> tuple[Release, ...]:
    """Return the releases for bare metal of those of ``architectures`` for which the stream has an ISO.

    Raises:
        StreamMetadataInvalid: a release is invalid; the detail has one line per architecture.
    """
    stream = _Node("$", document)
    published = stream.member("metadata").member("last-modified").date()
    node = stream.find(PAYLOAD)
    payload = node.text() if node else None
    releases: list[Release | None] = []
    faults: list[str] = []
    for architecture in architectures:
        try:
            releases.append(_read_release(stream.member("architectures"), architecture, published, payload))
        except StreamMetadataInvalid as error:
            faults.append(error.detail)
    if faults:
        raise StreamMetadataInvalid("\n".join(faults))
    return tuple(filter(None, releases))


def offered_members(document: Document) -> Mapping[str, object]:
    """Return the members about releases by architecture, equal in documents that offer the same."""
    members: dict[str, object] = {}
    for architecture, value in _Node("$", document).member("architectures").members().items():
        artifacts = value.get("artifacts") if isinstance(value, dict) else None
        offered = artifacts if isinstance(artifacts, dict) else {}
        members[architecture] = [offered.get(platform) for platform in DISK_PLATFORMS]
    return members


def restrict_architectures(document: Document, architectures: Collection[str]) -> Document:
    """Return the document without other architectures than these."""
    members = _Node("$", document).member("architectures").members()
    kept = {name: value for name, value in members.items() if name in architectures}
    return {**document, "architectures": kept}


def _read_release(
    architectures: _Node, architecture: str, published: datetime, payload: str | None
) -> Release | None:
    metal = architectures.find(architecture, *_METAL)
    formats = metal.find("formats") if metal else None
    iso = formats.find("iso") if formats else None
    if metal is None or formats is None or iso is None:
        return None
    version = metal.member("release").matching(VERSION.fullmatch, VERSION_FAULT)
    live = {"iso": _read_artifact(iso.member("disk"))}
    live |= {name: _read_artifact(node) for name in _PXE if (node := formats.find("pxe", name))}
    names = [file.name for file in live.values()]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise formats.invalid(f"two of {', '.join(live)} have the file name {repeated[0]}")
    return Release(
        architecture=architecture,
        version=version,
        published=published,
        **live,
        disks=tuple(_read_disks(architectures.member(architecture).member("artifacts"), version)),
        original=architectures.member(architecture).members(),
        payload=payload,
    )


def original_files(original: Document) -> Iterator[OriginalFile]:
    """Yield the valid files of all artifacts of an architecture.

    Args:
        original: what the stream says about the architecture.
    """
    architecture = _Node("$", original)
    for platform in _names(architecture, "artifacts"):
        for image_format in _names(architecture, "artifacts", platform, "formats"):
            for part in _names(architecture, "artifacts", platform, "formats", image_format):
                with suppress(StreamMetadataInvalid):
                    node = architecture.member("artifacts").member(platform)
                    release = node.member("release").text()
                    file = node.member("formats").member(image_format).member(part)
                    artifact = _read_artifact(file)
                    yield OriginalFile(platform, release, image_format, part, artifact, file.members())


def _names(node: _Node, *path: str) -> Iterable[str]:
    """Return the names of a descendant's members; none if it is absent, or not an object."""
    try:
        found = node.find(*path)
        return found.members() if found else ()
    except StreamMetadataInvalid:
        return ()


def _read_disks(artifacts: _Node, version: str) -> Iterator[StreamDisk]:
    """Yield the disk images of a release, at most one for each platform."""
    for platform in DISK_PLATFORMS:
        with suppress(StreamMetadataInvalid):
            node = artifacts.find(platform)
            if node is None or node.member("release").text() != version:
                continue
            formats = node.member("formats")
            for name in sorted(formats.members()):
                if match := _DISK_FORMAT.fullmatch(name):
                    yield StreamDisk(platform, match[1], _read_artifact(formats.member(name).member("disk")))
                    break


def _read_artifact(node: _Node) -> StreamArtifact:
    signature = node.find("signature")
    if signature and signature.value == "":
        signature = None
    return StreamArtifact(
        location=node.member("location").matching(
            lambda url: _is_artifact_url(url) and _FILE_NAME.fullmatch(_file_name(url)), _LOCATION_FAULT
        ),
        sha256=node.member("sha256").matching(_SHA256.fullmatch, "must be 64 lower-case hexadecimal digits"),
        signature=signature.matching(_is_artifact_url, _URL_FAULT) if signature else None,
    )


def _is_artifact_url(value: str) -> bool:
    return len(value) <= _MAX_URL and is_web_url(value)


def _file_name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


@attrs.frozen
class _Node:
    """A value with its place in the document."""

    path: str
    value: object = attrs.field(repr=False)

    def members(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self.invalid("must be an object")
        return self.value

    def member(self, name: str) -> _Node:
        members = self.members()
        node = self._child(name, members.get(name))
        if name not in members:
            raise node.invalid("is missing")
        return node

    def find(self, *names: str) -> _Node | None:
        """Return a descendant; None if it, or one on the way, is absent or null."""
        node = self
        for name in names:
            value = node.members().get(name)
            if value is None:
                return None
            node = node._child(name, value)
        return node

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.invalid("must be a string")
        return self.value

    def matching(self, is_valid: Callable[[str], object], fault: str) -> str:
        text = self.text()
        if not is_valid(text):
            raise self.invalid(fault)
        return text

    def date(self) -> datetime:
        text = self.matching(_DATE.fullmatch, _DATE_FAULT)
        try:
            return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
        except (ValueError, OverflowError):
            raise self.invalid(_DATE_FAULT) from None

    def _child(self, name: str, value: object) -> _Node:
        """Names from the document are escaped as in JSON, without line ends."""
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", name)
        return _Node(f"{self.path}.{name}" if plain else f"{self.path}[{json.dumps(name)[:100]}]", value)

    def invalid(self, fault: str) -> StreamMetadataInvalid:
        return StreamMetadataInvalid(f"{self.path}: {fault}")
