"""Config media: a small ISO with a host's config, for a second virtual CD beside the image that boots.

The program that reads the config finds the medium by its label, and the files by their paths. They are put
into an ISO without files, whose directories are of ISO 9660 with Rock Ridge and of Joliet:

    sector    content
    16        primary volume descriptor, Joliet's, and the end of the descriptors
    19        path tables: little-endian and big-endian of the first tree, then of Joliet's
    23        the root directories
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
import uuid
from datetime import UTC
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.extents import ExtentMap, Literal
from image_service.core.formats.iso9660.path_table import ROOT, PathTable
from image_service.core.formats.iso9660.records import (
    DIRECTORY,
    PARENT,
    SECTOR,
    SELF,
    Record,
    make_record,
    render_records,
)
from image_service.core.formats.iso9660.rock_ridge import both_orders
from image_service.core.formats.iso_edit.editor import IsoEditor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,16}")  # Joliet has room for 16 characters
_SYSTEM_AREA = bytes(16 * SECTOR)
_SECTORS = 25
_TABLES, _ROOTS = (19, 21), (23, 24)
_HEAD = struct.Struct("<B5sB")
_TEXTS, _TEXTS_END = 190, 813  # identifiers, which nobody reads
_JOLIET = b"%/E"
_ONE_VOLUME = struct.pack("<H", 1) + struct.pack(">H", 1)
_SHARED = b"SP\x07\x01\xbe\xef\x00"
_ROCK_RIDGE = b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A"
_MODIFIED_ACCESSED_CHANGED = 0x0E
_NO_DATE = b"0" * 16 + b"\0"

_OEM_CONFIGS = ("ks.cfg", "autoinst.jsonnet", "autoinst.json", "autoinst.xml")


@attrs.frozen
class ConfigMedium:
    """What the reader of a config medium looks for.

    Args:
        label: of the volume.
        paths: that it knows; one with a ``/`` at its end is of a directory with any files.
        needed: of these it must find one.
        identity: path and content of a file that names the configuration, in place of ``{}``; it is made from
            the other files where it is absent.
    """

    label: str
    paths: tuple[str, ...]
    needed: tuple[str, ...]
    identity: tuple[str, str] | None = None

    def complete(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files, and those that the reader wants to have but nobody wants to write.

        Raises:
            Unprocessable: it would not read one of the files, or finds no config.
        """
        for path in files:
            if not any(
                path == known or (known.endswith("/") and path.startswith(known)) for known in self.paths
            ):
                raise Unprocessable(
                    f"{path!r} would not be read from a medium {self.label}: it has {', '.join(self.paths)}"
                )
        if not any(path in files for path in self.needed):
            raise Unprocessable(f"a medium {self.label} needs a file {' or '.join(self.needed)}")
        completed = dict(files)
        if self.identity:
            path, text = self.identity
            completed.setdefault(path, text.replace("{}", _identify(files)).encode())
        return completed


def _identify(files: Mapping[str, bytes]) -> str:
    """Return a UUID that depends on all files."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(b"%s\0%d\0%s" % (path.encode(), len(content), content))
    return str(uuid.UUID(bytes=digest.digest()[:16], version=5))


MEDIA: Final[Mapping[str, ConfigMedium]] = {
    medium.label: medium
    for medium in (
        # cloud-init's NoCloud: without meta-data the rest is not read.
        ConfigMedium(
            "cidata",
            ("user-data", "meta-data", "network-config", "vendor-data"),
            ("user-data",),
            ("meta-data", "instance-id: {}\n"),
        ),
        # cloud-init's ConfigDrive, which needs the UUID, and Ignition on OpenStack.
        ConfigMedium(
            "config-2",
            (
                "openstack/latest/user_data",
                "openstack/latest/meta_data.json",
                "openstack/latest/network_data.json",
                "openstack/latest/vendor_data.json",
                "openstack/content/",
            ),
            ("openstack/latest/user_data",),
            ("openstack/latest/meta_data.json", '{"uuid": "{}"}\n'),
        ),
        # Talos, with talos.config=metal-iso.
        ConfigMedium("metal-iso", ("config.yaml",), ("config.yaml",)),
        # openSUSE MicroOS and SLE Micro: Ignition, and Combustion, whose script finds its files beside it.
        ConfigMedium("ignition", ("ignition/config.ign",), ("ignition/config.ign",)),
        ConfigMedium(
            "combustion",
            ("combustion/script", "combustion/", "ignition/config.ign"),
            ("combustion/script", "ignition/config.ign"),
        ),
        # Anaconda, where the command line has no inst.ks, and Agama, where it has no inst.auto.
        ConfigMedium("OEMDRV", _OEM_CONFIGS, _OEM_CONFIGS),
    )
}
"""By label."""


def write_config_medium(label: str, files: Mapping[str, bytes], created: datetime) -> bytes:
    """Return an ISO with files; equal arguments give equal bytes.

    Args:
        label: of the volume.
        files: contents by path from the root.
        created: the date of the volume and of its files; of a known zone.

    Raises:
        Unprocessable: the label or a path cannot be stored; says what can.
    """
    if not _LABEL.fullmatch(label):
        raise Unprocessable(
            f"the label {label!r} of a medium must have 1 to 16 characters of A-Z, a-z, 0-9, '_', '-' and '.'"
        )
    _check_paths(files)
    empty = ExtentMap((Literal(_empty_iso(label, created.astimezone(UTC))),))
    editor = IsoEditor(empty)
    for path, content in files.items():
        editor.put(path, (Literal(content),))
    medium = editor.finish().apply(empty)
    return medium.read_at(0, medium.size)


def _check_paths(files: Mapping[str, bytes]) -> None:
    """Refuse paths that differ in case only, which many readers of Joliet do not tell apart."""
    found: dict[str, str] = {}
    for path in files:
        names = path.split("/")
        for depth in range(1, len(names) + 1):
            part = "/".join(names[:depth])
            other = found.setdefault(part.casefold(), part)
            if other != part:
                raise Unprocessable(
                    f"{other!r} and {part!r} differ in case only: a medium can have one of them"
                )


def _empty_iso(label: str, created: datetime) -> bytes:
    # ECMA-119 sections 9.1.5 and 8.4.26.1: a date of a record, and of a descriptor.
    date = bytes([created.year - 1900, *created.timetuple()[1:6], 0])
    volume_date = created.strftime("%Y%m%d%H%M%S00").rjust(16, "0").encode() + b"\0"
    owner = both_orders(stat.S_IFDIR | 0o555) + both_orders(2) + both_orders(0) * 2
    entries = b"PX\x24\x01" + owner + b"TF\x1a\x01" + bytes([_MODIFIED_ACCESSED_CHANGED]) + date * 3
    descriptors, tables, roots = b"", b"", b""
    for is_joliet, table, block in zip((False, True), _TABLES, _ROOTS, strict=True):
        root = _root_record(block, date)
        areas = (b"", b"") if is_joliet else (_SHARED + entries + _ROCK_RIDGE, entries)
        records = [
            make_record(name, root, area, is_directory=True).moved(block, SECTOR)
            for name, area in zip((SELF, PARENT), areas, strict=True)
        ]
        roots += render_records(records)
        little, big = PathTable([SELF], [block], [ROOT]).render()
        tables += little.ljust(SECTOR, b"\0") + big.ljust(SECTOR, b"\0")
        descriptor = bytearray(SECTOR)
        _HEAD.pack_into(descriptor, 0, 2 if is_joliet else 1, b"CD001", 1)
        encoding = "utf-16-be" if is_joliet else "ascii"
        descriptor[8:72] = (" " * 32).encode(encoding)[:32] + label.ljust(32).encode(encoding)[:32]
        descriptor[80:88] = both_orders(_SECTORS)
        descriptor[88:91] = _JOLIET if is_joliet else bytes(3)
        descriptor[120:132] = _ONE_VOLUME * 2 + struct.pack("<H", SECTOR) + struct.pack(">H", SECTOR)
        descriptor[132:140] = both_orders(len(little))
        descriptor[140:156] = struct.pack("<I4x", table) + struct.pack(">I4x", table + 1)
        descriptor[156:190] = root.data
        blanks = (" " * (_TEXTS_END - _TEXTS)).encode(encoding)
        descriptor[_TEXTS:_TEXTS_END] = blanks[: _TEXTS_END - _TEXTS]
        descriptor[_TEXTS_END:882] = volume_date * 2 + _NO_DATE * 2 + b"\x01"
        descriptors += bytes(descriptor)
    end = _HEAD.pack(255, b"CD001", 1).ljust(SECTOR, b"\0")
    return _SYSTEM_AREA + descriptors + end + tables + roots


def _root_record(block: int, date: bytes) -> Record:
    place = both_orders(block) + both_orders(SECTOR)
    return Record(b"\x22\x00" + place + date + bytes([DIRECTORY, 0, 0]) + _ONE_VOLUME + b"\x01" + SELF)
