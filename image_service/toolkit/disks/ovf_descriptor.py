"""Reads the OVF descriptor of an OVA (DSP0243 sections 7.1 and 9.1): the files and the disk that it names.

    Envelope
      References
        File        id, href: the name of a file of the OVA; size: its bytes
      DiskSection
        Disk        fileRef: id of its file; capacity, in units of capacityAllocationUnits

What it says bounds nothing: the disk is read as its own headers say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from image_service.common.transfer.xml_values import parse_xml
from image_service.core.errors import FormatError
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from image_service.core.formats.disk.ova import OvaLayout
    from image_service.core.formats.reading import ReadAt

_MAX_BYTES = 4 << 20
_MAX_ELEMENTS = 20_000
_LONGEST_TAG = 1 << 20  # characters: properties may have configs as their values
_UNIT = re.compile(r"byte(?: *\* *(?P<base>2|10)\^(?P<exponent>[0-9]{1,2}))?")
_NUMBER = re.compile("[0-9]{1,18}")


def read_ovf(read_at: ReadAt, layout: OvaLayout, virtual_size: int) -> tuple[str, ...]:
    """Return in what the descriptor of an OVA differs from its files and its disk.

    Args:
        virtual_size: bytes of the disk.

    Raises:
        FormatError: it is not XML, has a document type or entities, or refers to a path or a URL.
    """
    name = f"{layout.ovf.path} in the OVA"
    if layout.ovf.length > _MAX_BYTES:
        raise FormatError(f"{name} has {layout.ovf.length} bytes, more than {_MAX_BYTES}")
    text = read_exactly(read_at, layout.ovf.offset, layout.ovf.length)
    root = parse_xml(text, name, _MAX_ELEMENTS, _LONGEST_TAG)
    files = [_attributes(file) for file in _find(root, "References", "File")]
    for file in files:
        _check_reference(name, file.get("href", ""))
    disks = [_attributes(disk) for disk in _find(root, "DiskSection", "Disk")]
    return (*_compare_files(name, files, layout), *_compare_disks(name, disks, virtual_size))


def _find(root: Element, section: str, kind: str) -> Iterator[Element]:
    """Yield the elements of a section, whatever the namespace: each version of OVF has its own."""
    for parent in root.iterfind(f"{{*}}{section}"):
        yield from parent.iterfind(f"{{*}}{kind}")


def _attributes(element: Element) -> dict[str, str]:
    return {name.rpartition("}")[2]: value for name, value in element.items()}


def _check_reference(name: str, href: str) -> None:
    """Raise FormatError unless a reference is the name of a file beside the descriptor."""
    file = _file_name(href)
    if not file.isprintable() or file in {"", ".", ".."} or set(file) & set("/\\:"):
        raise FormatError(
            f"{name} refers to {href!r:.80} (File in References), a path or a URL; the name of a file of the"
            " OVA is right"
        )


def _file_name(href: str) -> str:
    return unquote(href).removeprefix("./")


def _compare_files(name: str, files: list[dict[str, str]], layout: OvaLayout) -> Iterator[str]:
    members = {member.path: member for member in layout.members}
    for file in files:
        href = file.get("href", "")
        member = members.get(href) or members.get(_file_name(href))
        size = file.get("size", "")
        if member is None:
            yield f"{name} refers to {href!r:.80}, which is not in the OVA"
        elif _NUMBER.fullmatch(size) and int(size) != member.length:
            yield f"{name} says that {member.path} has {int(size)} bytes; it has {member.length}"


def _compare_disks(name: str, disks: list[dict[str, str]], virtual_size: int) -> Iterator[str]:
    for disk in disks:
        capacity = _capacity_bytes(disk)
        if capacity is not None and capacity != virtual_size:
            yield f"{name} says that the disk has {capacity} bytes; it has {virtual_size}"


def _capacity_bytes(disk: dict[str, str]) -> int | None:
    """Return the capacity of a disk; None: it is a parameter, or has an unknown unit."""
    unit = _UNIT.fullmatch(disk.get("capacityAllocationUnits", "byte").strip())
    capacity = disk.get("capacity", "")
    if unit is None or not _NUMBER.fullmatch(capacity):
        return None
    return int(capacity) * (int(unit["base"]) ** int(unit["exponent"]) if unit["base"] else 1)
