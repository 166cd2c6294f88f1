"""The areas of a live ISO that hold the kernel arguments: each in a boot loader's own config.

    coreos/kargs.json      {"default": text, "size": bytes, "files": [{"path", "offset", "pad"?, "end"?}]}:
                           the areas, all of one size
    32672 of the image     where kargs.json is absent, all numbers little-endian:
      +0     8             coreKarg
      +8     8             size of each area
      +16    8             offset of the default arguments, as long
      +24    6 x 8         offsets of the areas, up to the first 0

An area holds ``<arguments><end><pad>...``; ``#`` and a newline unless kargs.json says otherwise. All of them
must hold the same arguments, else a boot would depend on the firmware.
"""

from __future__ import annotations

import struct
from itertools import takewhile
from typing import TYPE_CHECKING

import attrs

from image_service.coreos.json_file import read_json_object
from image_service.errors import FileNotInImage, FormatError
from image_service.formats.reading import read_exactly
from image_service.formats.spans import Span, check_inside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.coreos.json_file import JsonObject
    from image_service.formats.iso9660 import Iso9660
    from image_service.formats.reading import ReadAt

KARGS_JSON = "coreos/kargs.json"
_MAX_AREA = 2048  # bytes; what the kernel takes, and coreos-installer's limit
_MAX_FILES = 16  # real images have one or two
_HEADER_OFFSET = 32672
_HEADER = struct.Struct("<8sQQ6Q")
_HEADER_MAGIC = b"coreKarg"
_PAD, _END = b"#", b"\n"


@attrs.frozen
class KargsArea:
    """One of the places that hold the kernel arguments: a boot loader's own config.

    Args:
        offset: bytes from the start of the image.
        pad: the byte that fills the area behind ``end``.
        end: the byte that ends the arguments.
        name: what messages call it: its file's path.
    """

    offset: int
    pad: bytes
    end: bytes
    name: str = attrs.field(default="", eq=False)

    def parse(self, data: bytes) -> str:
        """The arguments in the area's bytes, without blanks around them.

        Raises:
            FormatError: they are not text.
        """
        try:
            return data.rstrip(self.pad).rstrip(self.end).decode().strip()
        except UnicodeDecodeError:
            raise FormatError(f"the kernel arguments at offset {self.offset} are not UTF-8") from None


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

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where they are."""
        return tuple(Span(area.name, area.offset, self.size) for area in self.areas)

    def read(self, read_at: ReadAt) -> str:
        """The arguments that all areas hold.

        Raises:
            FormatError: they do not all hold the same, or no text.
        """
        held = [area.parse(read_exactly(read_at, area.offset, self.size)) for area in self.areas]
        for span, arguments in zip(self.spans, held, strict=True):
            if arguments != held[0]:
                raise FormatError(f"kernel arguments differ: {self.spans[0]} and {span}")
        return held[0]


def find_kargs_areas(iso: Iso9660, read_at: ReadAt, size: int) -> KargsAreas | None:
    """Find where an image's kernel arguments are.

    Args:
        iso: the image's volume.
        read_at: reads the image.
        size: bytes of the image's file.

    Returns:
        the areas, inside their files; None: the image has none.

    Raises:
        FormatError: what describes them is wrong.
    """
    try:
        file = iso.find_file(KARGS_JSON)
    except FileNotInImage:
        return _areas_of_header(read_at, size)
    return _areas_of_json(iso, read_json_object(read_at, file))


def _areas_of_json(iso: Iso9660, info: JsonObject) -> KargsAreas:
    default, size = info.text("default"), info.count("size")
    _check_size(info.where, size)
    if len(default.encode()) > size:
        raise FormatError(
            f"{info.where}: the default arguments take {len(default.encode())} bytes, the areas have {size}"
        )
    return _in_order(default, size, [_area(iso, file, size) for file in info.objects("files", _MAX_FILES)])


def _area(iso: Iso9660, info: JsonObject, size: int) -> KargsArea:
    file = iso.find_file(info.text("path"))
    offset = info.count("offset")
    check_inside(file.path, offset, size, file.length)
    pad, end = info.character("pad", _PAD), info.character("end", _END)
    return KargsArea(file.offset + offset, pad, end, file.path)


def _areas_of_header(read_at: ReadAt, image_size: int) -> KargsAreas | None:
    header = read_exactly(read_at, _HEADER_OFFSET, _HEADER.size)
    magic, size, default_offset, *offsets = _HEADER.unpack(header)
    if magic != _HEADER_MAGIC:
        return None
    name = f"the coreKarg header at offset {_HEADER_OFFSET}"
    areas = [KargsArea(offset, _PAD, _END, name) for offset in takewhile(bool, offsets)]
    if not areas:
        raise FormatError(f"{name} lists no areas")
    _check_size(name, size)
    for offset in (default_offset, *(area.offset for area in areas)):
        check_inside("the image", offset, size, image_size)
    default = KargsArea(default_offset, _PAD, _END).parse(read_exactly(read_at, default_offset, size))
    return _in_order(default, size, areas)


def _in_order(default: str, size: int, areas: Iterable[KargsArea]) -> KargsAreas:
    return KargsAreas(default, size, tuple(sorted(areas, key=lambda area: area.offset)))


def _check_size(name: str, size: int) -> None:
    if not 0 < size <= _MAX_AREA:
        raise FormatError(f"{name}: areas of kernel arguments must have 1 to {_MAX_AREA} bytes, not {size}")
