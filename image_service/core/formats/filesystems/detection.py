"""Which file system is in a volume, its label and its UUID, and the root of those that can be read.

offset        magic
0             XFSB (XFS), LUKS BA BE, hsqs (squashfs)
3             NTFS, EXFAT, -FVE-FS- (BitLocker), each padded with blanks to 8 bytes
0, 512, …     LABELONE (LVM2), in one of the first four sectors
1024          E2 E1 F5 E0 (erofs)
1080          53 EF (ext2, ext3, ext4)
4086          SWAPSPACE2; likewise at the end of a page of another size
32769         CD001 (ISO 9660)
65600         _BHRfS_M (btrfs)
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.erofs import EROFS_MAGIC, EROFS_OFFSET, read_erofs
from image_service.core.formats.filesystems.ext4 import read_ext4
from image_service.core.formats.filesystems.ext4_superblock import (
    EXT4_MAGIC,
    EXT4_MAGIC_OFFSET,
    read_ext4_superblock,
)
from image_service.core.formats.filesystems.fat import is_fat, read_fat
from image_service.core.formats.filesystems.ntfs import read_ntfs
from image_service.core.formats.filesystems.squashfs import SQUASHFS_MAGIC, read_squashfs
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import Span, SpanReader, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.core.formats.reading import ReadAt

_SECTOR = 512
_LVM_SECTORS = 4
_LVM_GROUPS = (6, 4, 4, 4, 4, 4, 6)  # characters of a UUID between its hyphens
_SWAP_MAGIC = b"SWAPSPACE2"
_PAGES = (4096, 8192, 16384, 65536)


@attrs.frozen(eq=False)
class FileSystem:
    """A file system, or another use of a volume.

    Args:
        kind: as blkid names it: ``ext4``, ``vfat``, ``xfs``, ``btrfs``, ``ntfs``, ``exfat``, ``iso9660``,
            ``squashfs``, ``erofs``, ``swap``, ``crypto_LUKS``, ``LVM2_member``, ``BitLocker``.
        label: "" if it has none, or if this reader does not know where it is.
        uuid: as blkid prints it; "" likewise.
        root: None: its files are not readable here.
        problem: why not, if others of its kind are.
        needs_recovery: a journal wants replay.
    """

    kind: str
    label: str = ""
    uuid: str = ""
    root: TreeNode | None = None
    problem: str | None = None
    needs_recovery: bool = False


def detect_file_system(read_at: ReadAt, size: int) -> FileSystem | None:
    """Return which file system is in a volume of `size` bytes; None if none is known.

    Raises:
        FormatError: its superblock is damaged.
    """
    volume = SpanReader(read_at, Span("the volume", 0, size))
    for matches, describe in _KINDS:
        if matches(volume):
            return describe(volume)
    return None


def _magic(offset: int, magic: bytes) -> Callable[[SpanReader], bool]:
    return lambda volume: _peek(volume, offset, len(magic)) == magic


def _peek(volume: SpanReader, offset: int, length: int) -> bytes:
    """Return bytes of a volume, or none beyond its end."""
    return volume(offset, length) if offset + length <= volume.span.length else b""


def _describe_ext(volume: SpanReader) -> FileSystem:
    superblock = read_ext4_superblock(volume, volume.span.length)
    found = FileSystem(
        superblock.kind,
        superblock.label,
        superblock.uuid,
        needs_recovery="needs_recovery" in superblock.features,
    )
    return _with_root(found, lambda: read_ext4(volume, volume.span.length).root)


def _with_root(found: FileSystem, read_root: Callable[[], TreeNode]) -> FileSystem:
    try:
        return attrs.evolve(found, root=read_root())
    except FormatError as error:
        return attrs.evolve(found, problem=error.detail)


def _describe_fat(volume: SpanReader) -> FileSystem:
    fat = read_fat(volume, volume.span.length)
    return FileSystem("vfat", fat.label, fat.uuid, fat.root)


def _describe_xfs(volume: SpanReader) -> FileSystem:
    superblock = read_exactly(volume, 0, _SECTOR)
    return FileSystem("xfs", _text(superblock[108:120]), _uuid(superblock[32:48]))


def _describe_btrfs(volume: SpanReader) -> FileSystem:
    superblock = read_exactly(volume, 65536, 4096)
    return FileSystem("btrfs", _text(superblock[299:555]), _uuid(superblock[32:48]))


def _describe_ntfs(volume: SpanReader) -> FileSystem:
    serial = volume(72, 8)[::-1].hex().upper()
    try:
        label = read_ntfs(volume, volume.span.length).label
    except FormatError as error:
        return FileSystem("ntfs", uuid=serial, problem=error.detail)
    return FileSystem("ntfs", label, serial)


def _describe_exfat(volume: SpanReader) -> FileSystem:
    serial = volume(100, 4)[::-1].hex().upper()
    return FileSystem("exfat", uuid=f"{serial[:4]}-{serial[4:]}")


def _describe_iso(volume: SpanReader) -> FileSystem:
    return FileSystem("iso9660", read_iso9660(volume, volume.span.length).volume_id)


def _describe_squashfs(volume: SpanReader) -> FileSystem:
    return _with_root(FileSystem("squashfs"), lambda: read_squashfs(volume))


def _describe_erofs(volume: SpanReader) -> FileSystem:
    superblock = volume(EROFS_OFFSET, 128)
    found = FileSystem("erofs", _text(superblock[64:80]), _uuid(superblock[48:64]))
    return _with_root(found, lambda: read_erofs(volume))


def _is_swap(volume: SpanReader) -> bool:
    return any(_peek(volume, page - len(_SWAP_MAGIC), len(_SWAP_MAGIC)) == _SWAP_MAGIC for page in _PAGES)


def _describe_swap(volume: SpanReader) -> FileSystem:
    return FileSystem("swap", _text(volume(1052, 16)), _uuid(volume(1036, 16)))


def _describe_luks(volume: SpanReader) -> FileSystem:
    header = read_exactly(volume, 0, _SECTOR)
    label = _text(header[24:72]) if header[6:8] == b"\0\2" else ""
    return FileSystem("crypto_LUKS", label, _text(header[168:208]))


def _find_lvm(volume: SpanReader) -> int | None:
    return next((at for at in range(0, _LVM_SECTORS * _SECTOR, _SECTOR) if _is_lvm_label(volume, at)), None)


def _is_lvm_label(volume: SpanReader, offset: int) -> bool:
    return _peek(volume, offset, 8) == b"LABELONE" and _peek(volume, offset + 24, 8) == b"LVM2 001"


def _describe_lvm(volume: SpanReader) -> FileSystem:
    characters = iter(_text(volume((_find_lvm(volume) or 0) + 32, 32)))
    groups = ("".join(next(characters, "") for _ in range(length)) for length in _LVM_GROUPS)
    return FileSystem("LVM2_member", uuid="-".join(groups))


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace").strip()


def _uuid(field: bytes) -> str:
    return str(uuid.UUID(bytes=field))


_KINDS: tuple[tuple[Callable[[SpanReader], bool], Callable[[SpanReader], FileSystem]], ...] = (
    (_magic(0, b"LUKS\xba\xbe"), _describe_luks),
    (_magic(3, b"-FVE-FS-"), lambda _volume: FileSystem("BitLocker")),
    (_magic(3, b"NTFS    "), _describe_ntfs),
    (_magic(3, b"EXFAT   "), _describe_exfat),
    (_magic(0, b"XFSB"), _describe_xfs),
    (_magic(0, SQUASHFS_MAGIC), _describe_squashfs),
    (_magic(65600, b"_BHRfS_M"), _describe_btrfs),
    (_magic(EXT4_MAGIC_OFFSET, EXT4_MAGIC), _describe_ext),
    (_magic(EROFS_OFFSET, EROFS_MAGIC), _describe_erofs),
    (lambda volume: _find_lvm(volume) is not None, _describe_lvm),
    (_is_swap, _describe_swap),
    (_magic(32769, b"CD001"), _describe_iso),
    (lambda volume: is_fat(_peek(volume, 0, _SECTOR)), _describe_fat),
)
