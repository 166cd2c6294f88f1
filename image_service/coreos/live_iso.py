"""A CoreOS live ISO: the areas that its builder reserved for an Ignition config and kernel arguments.

    coreos/igninfo.json    {"file": path, "offset"?: bytes into it, "length"?: bytes}: the Ignition area;
                           where the file is absent, all of images/ignition.img
    coreos/kargs.json      {"default": text, "size": bytes, "files": [{"path", "offset", "pad"?, "end"?}]}:
                           the areas of the kernel arguments, all of one size
    32672 of the image     where kargs.json is absent, all numbers little-endian:
      +0     8             coreKarg
      +8     8             size of each area
      +16    8             offset of the default arguments, as long
      +24    6 x 8         offsets of the areas, up to the first 0

An area of kernel arguments holds ``<arguments><end><pad>...``; ``#`` and a newline unless kargs.json says
otherwise. All of them must hold the same arguments, else a boot would depend on the firmware.
"""

from __future__ import annotations

import struct
from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.iso9660 import read_exactly, read_iso9660
from image_service.coreos.json_file import read_json_object
from image_service.errors import BaseImageError, FileNotInIso

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.coreos.iso9660 import Iso9660, ReadAt
    from image_service.coreos.json_file import JsonObject

_VOLUME_IDS = ("rhcos-", "fedora-coreos-", "scos-")
_MAX_IGNITION_AREA = 64 * 1024 * 1024  # bytes; every builder so far reserved 256 KiB
_MAX_KARGS_AREA = 2048  # bytes; what the kernel takes, and coreos-installer's limit
_MAX_KARGS_FILES = 16  # real images have one or two
_HEADER_OFFSET = 32672
_HEADER = struct.Struct("<8sQQ6Q")
_HEADER_MAGIC = b"coreKarg"
_PAD, _END = b"#", b"\n"
_CHUNK = 1024 * 1024


@attrs.frozen
class EmbedArea:
    """Where the Ignition config goes.

    Args:
        offset: bytes from the start of the image.
        length: bytes, all zero in a pristine image.
    """

    offset: int
    length: int


@attrs.frozen
class KargsArea:
    """One of the places that hold the kernel arguments: a boot loader's own config.

    Args:
        offset: bytes from the start of the image.
        pad: the byte that fills the area behind ``end``.
        end: the byte that ends the arguments.
    """

    offset: int
    pad: bytes
    end: bytes

    def parse(self, data: bytes) -> str:
        """The arguments in the area's bytes, without blanks around them.

        Raises:
            BaseImageError: they are not text.
        """
        try:
            return data.rstrip(self.pad).rstrip(self.end).decode().strip()
        except UnicodeDecodeError:
            raise BaseImageError(f"the kernel arguments at offset {self.offset} are not UTF-8") from None


@attrs.frozen
class KargsAreas:
    """All places that hold the kernel arguments, each of which must hold the same ones.

    Args:
        default: the arguments that the image came with.
        size: bytes of each area.
        areas: by ascending offset, at least one, none overlapping.
    """

    default: str
    size: int
    areas: tuple[KargsArea, ...]


@attrs.frozen
class LiveIso:
    """What a base image's overlays are placed by.

    Args:
        volume_id: ISO 9660 volume identifier, by which the boot loader finds the image.
        created: when the volume was made, UTC, whole seconds; None: the image does not say.
        size: bytes of the file.
        ignition: where the Ignition config goes.
        kernel_arguments: where kernel arguments go; None: the image takes none.
        customized: why the image is not as its builder made it; None: it is pristine.
    """

    volume_id: str
    created: datetime | None
    size: int
    ignition: EmbedArea
    kernel_arguments: KargsAreas | None
    customized: str | None


def read_live_iso(read_at: ReadAt, size: int) -> LiveIso:
    """Read where a live ISO may be customized.

    Args:
        read_at: reads the image.
        size: bytes of the image's file.

    Returns:
        its layout, in which no area leaves its file or overlaps another.

    Raises:
        BaseImageError: this is not a CoreOS live ISO, or one that cannot be customized safely; the
            message has the name, the offset and the reason.
    """
    iso = read_iso9660(read_at, size)
    if not iso.volume_id.startswith(_VOLUME_IDS):
        raise BaseImageError(
            f"volume {iso.volume_id!r} is not of CoreOS: it must begin with {', '.join(_VOLUME_IDS)}"
        )
    ignition = _find_ignition_area(iso, read_at)
    kargs = _find_kargs(iso, read_at, size)
    reserved = _Span("Ignition", ignition.offset, ignition.length)
    _refuse_overlaps([reserved, *(kargs.spans if kargs else ())])
    return LiveIso(
        volume_id=iso.volume_id,
        created=iso.created,
        size=size,
        ignition=ignition,
        kernel_arguments=kargs.areas if kargs else None,
        customized=" and ".join(_customizations(read_at, ignition, kargs)) or None,
    )


@attrs.frozen
class _Span:
    """An area, by the name that messages call it."""

    name: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.length} bytes at offset {self.offset} ({self.name})"


@attrs.frozen
class _Kargs:
    """The areas of the kernel arguments, with a name for each."""

    areas: KargsAreas
    spans: tuple[_Span, ...]

    @classmethod
    def of(cls, default: str, size: int, named: Sequence[tuple[str, KargsArea]]) -> _Kargs:
        ordered = sorted(named, key=lambda item: item[1].offset)
        areas = KargsAreas(default, size, tuple(area for _, area in ordered))
        return cls(areas, tuple(_Span(name, area.offset, size) for name, area in ordered))

    def read(self, read_at: ReadAt) -> str:
        """The arguments that all areas hold."""
        held = [area.parse(read_exactly(read_at, area.offset, self.areas.size)) for area in self.areas.areas]
        for span, arguments in zip(self.spans, held, strict=True):
            if arguments != held[0]:
                raise BaseImageError(f"kernel arguments differ: {self.spans[0]} and {span}")
        return held[0]


def _find_ignition_area(iso: Iso9660, read_at: ReadAt) -> EmbedArea:
    try:
        info = read_json_object(read_at, iso.find("coreos/igninfo.json"))
    except FileNotInIso:
        file = iso.find("images/ignition.img")
        offset, length = 0, file.length
    else:
        file = iso.find(info.text("file"))
        offset = info.count("offset", 0)
        length = info.count("length", file.length - offset)
    _check_room(file.path, offset, length, file.length)
    if not 0 < length <= _MAX_IGNITION_AREA:
        raise BaseImageError(
            f"the Ignition area in {file.path} must have 1 to {_MAX_IGNITION_AREA} bytes, not {length}"
        )
    return EmbedArea(file.offset + offset, length)


def _find_kargs(iso: Iso9660, read_at: ReadAt, size: int) -> _Kargs | None:
    try:
        file = iso.find("coreos/kargs.json")
    except FileNotInIso:
        return _kargs_of_header(read_at, size)
    return _kargs_of_json(iso, read_json_object(read_at, file))


def _kargs_of_json(iso: Iso9660, info: JsonObject) -> _Kargs:
    default, size = info.text("default"), info.count("size")
    _check_size(info.where, size)
    if len(default.encode()) > size:
        raise BaseImageError(
            f"{info.where}: the default arguments take {len(default.encode())} bytes, the areas have {size}"
        )
    files = info.objects("files", _MAX_KARGS_FILES)
    return _Kargs.of(default, size, [_kargs_area(iso, file, size) for file in files])


def _kargs_area(iso: Iso9660, info: JsonObject, size: int) -> tuple[str, KargsArea]:
    file = iso.find(info.text("path"))
    offset = info.count("offset")
    _check_room(file.path, offset, size, file.length)
    area = KargsArea(file.offset + offset, info.character("pad", _PAD), info.character("end", _END))
    return file.path, area


def _kargs_of_header(read_at: ReadAt, image_size: int) -> _Kargs | None:
    header = read_exactly(read_at, _HEADER_OFFSET, _HEADER.size)
    magic, size, default_offset, *offsets = _HEADER.unpack(header)
    if magic != _HEADER_MAGIC:
        return None
    name = f"the coreKarg header at offset {_HEADER_OFFSET}"
    areas = [KargsArea(offset, _PAD, _END) for offset in takewhile(bool, offsets)]
    if not areas:
        raise BaseImageError(f"{name} lists no areas")
    _check_size(name, size)
    for offset in (default_offset, *(area.offset for area in areas)):
        _check_room("the image", offset, size, image_size)
    default = KargsArea(default_offset, _PAD, _END).parse(read_exactly(read_at, default_offset, size))
    return _Kargs.of(default, size, [(name, area) for area in areas])


def _check_size(name: str, size: int) -> None:
    if not 0 < size <= _MAX_KARGS_AREA:
        raise BaseImageError(
            f"{name}: areas of kernel arguments must have 1 to {_MAX_KARGS_AREA} bytes, not {size}"
        )


def _check_room(name: str, offset: int, length: int, limit: int) -> None:
    if offset + length > limit or length < 0:
        raise BaseImageError(
            f"an embed area leaves {name} of {limit} bytes: {length} bytes at offset {offset}"
        )


def _refuse_overlaps(spans: Sequence[_Span]) -> None:
    for one, other in pairwise(sorted(spans, key=lambda span: span.offset)):
        if one.offset + one.length > other.offset:
            raise BaseImageError(f"embed areas overlap: {one} and {other}")


def _customizations(read_at: ReadAt, ignition: EmbedArea, kargs: _Kargs | None) -> Iterator[str]:
    """What is not as the builder left it."""
    if not _is_zero(read_at, ignition):
        yield f"the Ignition area at offset {ignition.offset} is not empty"
    if kargs and kargs.read(read_at) != kargs.areas.default.strip():
        yield f"the kernel arguments at offset {kargs.areas.areas[0].offset} are not the default ones"


def _is_zero(read_at: ReadAt, area: EmbedArea) -> bool:
    stop = area.offset + area.length
    chunks = ((at, min(_CHUNK, stop - at)) for at in range(area.offset, stop, _CHUNK))
    return not any(read_exactly(read_at, at, length).strip(b"\0") for at, length in chunks)
