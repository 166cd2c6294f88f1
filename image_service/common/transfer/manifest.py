"""EC2's import manifest: the parts of a disk image, and the URLs where they are.

<manifest>
  <version>2010-11-15</version>
  <file-format>VMDK|RAW|VHD|QCOW2|VHDX|OVA</file-format>
  <importer><name/><version/><release/></importer>
  <self-destruct-url>to DELETE the manifest</self-destruct-url>
  <import>
    <size>bytes of the image: of VMDK and QCOW2, those of its disk</size>
    <volume-size>GiB</volume-size>
    <parts count="N">
      <part index="0">
        <byte-range start="0" end="the last byte"/>
        <key/> <head-url/> <get-url/> <delete-url/>
      </part>
      …
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import attrs

from image_service import __version__
from image_service.common.transfer.xml_values import (
    MAX_PARTS,
    number_of,
    only_child,
    parse_number,
    parse_xml,
    parts_of,
    text_of,
)
from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import DiskFormat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

GIB = 1 << 30
MANIFEST_FORMATS = {
    "RAW": DiskFormat.RAW,
    "VMDK": DiskFormat.VMDK,
    "VHD": DiskFormat.VHD,
    "QCOW2": DiskFormat.QCOW2,
}
"""By the names that manifests have for them; QCOW2 is an addition of this service."""
OVA = "OVA"
IMAGE_FORMATS = {**MANIFEST_FORMATS, "VHDX": DiskFormat.VHDX, OVA: DiskFormat.VMDK}
"""Those of images that are one object; the VMDK of an OVA is inside it. Clients upload no such parts."""

_VERSION = "2010-11-15"
_ELEMENTS_OF_PART = 6
_OTHER_ELEMENTS = 64
_MAX_VOLUME_GIB = 1 << 20


@attrs.frozen
class ManifestPart:
    """A run of the image's bytes, and its URLs, whose queries are credentials.

    Args:
        index: from 0.
        offset: in the image.
        length: bytes.
        key: in the object store.
        head_url: to ask whether it is there.
    """

    index: int
    offset: int
    length: int
    key: str
    head_url: str = attrs.field(repr=False)
    get_url: str = attrs.field(repr=False)
    delete_url: str = attrs.field(repr=False)


@attrs.frozen
class ImportManifest:
    """A valid manifest.

    Args:
        format_name: one of `IMAGE_FORMATS`.
        size: bytes of the image as declared: of the file, or of its disk.
        volume_gib: GiB of the volume that must hold the disk.
        parts: contiguous from offset 0.
    """

    format_name: str
    size: int
    volume_gib: int
    self_destruct_url: str = attrs.field(repr=False)
    parts: tuple[ManifestPart, ...]

    @property
    def content(self) -> str:
        """The format of the file as the toolkit names it."""
        return OVA.lower() if self.format_name == OVA else IMAGE_FORMATS[self.format_name].value

    @property
    def file_size(self) -> int:
        """Bytes of the image file."""
        return self.parts[-1].offset + self.parts[-1].length

    @property
    def volume_size(self) -> int:
        """Bytes of the volume."""
        return self.volume_gib * GIB

    def urls(self) -> Iterator[tuple[str, str]]:
        """Yield (name for messages, URL) of each URL."""
        yield "self-destruct-url", self.self_destruct_url
        for part in self.parts:
            yield f"head-url of part {part.index}", part.head_url
            yield f"get-url of part {part.index}", part.get_url
            yield f"delete-url of part {part.index}", part.delete_url


def parse_import_manifest(text: bytes) -> ImportManifest:
    """Return a manifest; FormatError names what is invalid. The URLs are not checked."""
    root = parse_xml(text, "the manifest", MAX_PARTS * _ELEMENTS_OF_PART + _OTHER_ELEMENTS)
    if root.tag != "manifest":
        raise FormatError("the manifest's root element is not named manifest")
    if text_of(root, "version") != _VERSION:
        raise FormatError(f"the manifest's version is not {_VERSION}")
    name = text_of(root, "file-format").upper()
    if name not in IMAGE_FORMATS:
        raise FormatError(f"the manifest's file-format must be one of {', '.join(IMAGE_FORMATS)}")
    only_child(root, "importer")
    described = only_child(root, "import")
    manifest = ImportManifest(
        name,
        number_of(described, "size"),
        number_of(described, "volume-size"),
        text_of(root, "self-destruct-url"),
        _parse_parts(described),
    )
    if not 0 < manifest.volume_gib <= _MAX_VOLUME_GIB:
        raise FormatError(f"the manifest's volume-size is not from 1 to {_MAX_VOLUME_GIB} GiB")
    if not 0 < manifest.size <= manifest.volume_size:
        raise FormatError(
            f"the manifest's size of {manifest.size} bytes is not from 1"
            f" to the {manifest.volume_size} of its volume"
        )
    if manifest.content == DiskFormat.RAW.value and manifest.file_size != manifest.size:
        raise FormatError(
            f"the manifest's parts have {manifest.file_size} bytes, but its size is {manifest.size}"
        )
    return manifest


def _parse_parts(element: Element) -> tuple[ManifestPart, ...]:
    parts = []
    offset = 0
    for index, each in enumerate(parts_of(element)):
        described = only_child(each, "byte-range")
        start = parse_number(described.get("start"), f"start of part {index}")
        end = parse_number(described.get("end"), f"end of part {index}")
        if start != offset or end < start:
            raise FormatError(
                f"the manifest's part {index} is of bytes {start} to {end}; it must begin at {offset}"
            )
        urls = (text_of(each, tag) for tag in ("key", "head-url", "get-url", "delete-url"))
        parts.append(ManifestPart(index, start, end + 1 - start, *urls))
        offset = end + 1
    return tuple(parts)


def render_import_manifest(manifest: ImportManifest) -> bytes:
    """Return the XML of a manifest."""
    parts = "".join(
        f'<part index="{part.index}">'
        f'<byte-range start="{part.offset}" end="{part.offset + part.length - 1}"/>'
        f"<key>{escape(part.key)}</key>"
        f"<head-url>{escape(part.head_url)}</head-url>"
        f"<get-url>{escape(part.get_url)}</get-url>"
        f"<delete-url>{escape(part.delete_url)}</delete-url></part>"
        for part in manifest.parts
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<manifest><version>{_VERSION}</version><file-format>{manifest.format_name}</file-format>"
        f"<importer><name>image-toolkit</name><version>{__version__}</version><release>1</release></importer>"
        f"<self-destruct-url>{escape(manifest.self_destruct_url)}</self-destruct-url>"
        f"<import><size>{manifest.size}</size><volume-size>{manifest.volume_gib}</volume-size>"
        f'<parts count="{len(manifest.parts)}">{parts}</parts></import></manifest>\n'
    ).encode()
