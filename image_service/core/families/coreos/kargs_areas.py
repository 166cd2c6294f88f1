"""The areas of a live ISO that contain the kernel arguments, each in a boot loader's configuration.

    coreos/kargs.json      {"default": text, "size": bytes, "files": [{"path", "offset", "pad"?, "end"?}]}:
                           the areas, all of one size
    32672 of the image     where kargs.json is absent, all numbers little-endian:
      +0     8             coreKarg
      +8     8             size of each area
      +16    8             offset of the default arguments, as long
      +24    6 x 8         offsets of the areas, up to the first 0

An area contains ``<arguments><end><pad>...``; ``#`` and a newline unless kargs.json says otherwise. All areas
must contain the same arguments, else a boot would depend on the firmware.
"""

from __future__ import annotations

import json
import struct
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FileNotInImage, FormatError, KernelArgumentsTooLarge
from image_service.core.families.coreos.family import KARGS_JSON
from image_service.core.families.coreos.json_file import read_json_object
from image_service.core.formats.reading import Span, check_inside, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.core.formats.iso9660.volume import Iso9660
    from image_service.core.formats.reading import ReadAt

MAX_AREA: Final = 2048
"""Bytes of an area: the limit of the kernel of x86_64 and of coreos-installer."""

_MAX_FILES = 16  # real images have one or two
_HEADER_OFFSET = 32672
_HEADER = struct.Struct("<8xQQ6Q")
_HEADER_MAGIC = b"coreKarg"
_PAD, _END = b"#", b"\n"


@attrs.frozen
class KargsArea:
    """One of the areas that contain the kernel arguments."""

    offset: int  # bytes from the start of the image
    pad: bytes  # the byte that fills the area after ``end``
    end: bytes  # the byte that ends the arguments
    name: str = attrs.field(default="", eq=False)  # its file's path, for messages

    def parse(self, data: bytes) -> str:
        """Return the arguments in the area's bytes, without blanks around them; FormatError if not UTF-8."""
        try:
            return data.rstrip(self.pad).rstrip(self.end).decode().strip()
        except UnicodeDecodeError:
            raise FormatError(f"the kernel arguments at offset {self.offset} are not UTF-8") from None

    def render(self, arguments: str, size: int) -> bytes:
        """Return the ``size`` bytes of the area with ``arguments``, or raise KernelArgumentsTooLarge."""
        text = arguments.strip().encode()
        if len(text) >= size:
            raise KernelArgumentsTooLarge(
                f"the kernel arguments take {len(text)} bytes, their embed areas hold {size - 1}"
            )
        return (text + self.end).ljust(size, self.pad)


def _sort(areas: Iterable[KargsArea]) -> tuple[KargsArea, ...]:
    return tuple(sorted(areas, key=lambda area: area.offset))


@attrs.frozen
class KargsAreas:
    """All areas of an image that contain the kernel arguments."""

    default: str  # the arguments that the image came with
    size: int  # bytes of each area
    areas: tuple[KargsArea, ...] = attrs.field(converter=_sort)  # at least one; none overlap

    @property
    def spans(self) -> tuple[Span, ...]:
        """The places of the embed areas."""
        return tuple(Span(area.name, area.offset, self.size) for area in self.areas)

    def read(self, read_at: ReadAt) -> str:
        """Return the arguments in all areas; FormatError if they differ or are not UTF-8."""
        found = [area.parse(read_exactly(read_at, area.offset, self.size)) for area in self.areas]
        for span, arguments in zip(self.spans, found, strict=True):
            if arguments != found[0]:
                raise FormatError(f"kernel arguments differ: {self.spans[0]} and {span}")
        return found[0]


def find_kargs_areas(iso: Iso9660, read_at: ReadAt, size: int) -> KargsAreas | None:
    """Find where the kernel arguments of an image of ``size`` bytes are; None: it has no areas for them."""
    try:
        file = iso.find_file(KARGS_JSON)
    except FileNotInImage:
        return _read_header(read_at, size)
    info = read_json_object(read_at, file)
    default, area_size = info.text("default"), info.count("size")
    _check_size(info.where, area_size)
    if len(default.encode()) > area_size:
        raise FormatError(
            f"{info.where}: the default arguments take {len(default.encode())} bytes, the areas have"
            f" {area_size}"
        )
    areas = []
    for entry in info.objects("files", _MAX_FILES):
        boot_config = iso.find_file(entry.text("path"))
        offset = entry.count("offset")
        check_inside(boot_config.path, offset, area_size, boot_config.length)
        pad, end = entry.character("pad", _PAD), entry.character("end", _END)
        areas.append(KargsArea(boot_config.offset + offset, pad, end, boot_config.path))
    return KargsAreas(default, area_size, areas)


def rewrite_kargs_json(original: bytes, default: str) -> bytes:
    """Rewrite coreos/kargs.json for other default arguments, byte for byte as coreos-installer does.

    The result has the known fields, and blanks up to the length of the original; FormatError if it is longer.
    """
    file = Span(KARGS_JSON, 0, len(original))
    info = read_json_object(lambda start, length: original[start : start + length], file)
    areas = []
    for entry in info.objects("files", _MAX_FILES):
        area: dict[str, str | int] = {"path": entry.text("path"), "offset": entry.count("offset")}
        for name in ("pad", "end"):
            if character := entry.character(name, b""):
                area[name] = character.decode()
        areas.append(area)
    content = {"default": default, "files": areas, "size": info.count("size")}
    rendered = json.dumps(content, indent=2, ensure_ascii=False).encode()
    if len(rendered) > len(original):
        raise FormatError(
            f"{file.path} needs {len(rendered)} bytes in a minimal ISO; only {len(original)} are available"
        )
    return rendered.ljust(len(original))


def _read_header(read_at: ReadAt, image_size: int) -> KargsAreas | None:
    header = read_exactly(read_at, _HEADER_OFFSET, _HEADER.size)
    if not header.startswith(_HEADER_MAGIC):
        return None
    size, default_offset, *offsets = _HEADER.unpack(header)
    name = f"the coreKarg header at offset {_HEADER_OFFSET}"
    areas = [KargsArea(offset, _PAD, _END, name) for offset in takewhile(bool, offsets)]
    if not areas:
        raise FormatError(f"{name} lists no areas")
    _check_size(name, size)
    for offset in (default_offset, *(area.offset for area in areas)):
        check_inside("the image", offset, size, image_size)
    default = KargsArea(default_offset, _PAD, _END).parse(read_exactly(read_at, default_offset, size))
    return KargsAreas(default, size, areas)


def _check_size(name: str, size: int) -> None:
    if not 0 < size <= MAX_AREA:
        raise FormatError(f"{name}: areas of kernel arguments must have 1 to {MAX_AREA} bytes, not {size}")
