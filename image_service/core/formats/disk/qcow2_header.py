"""The header of qcow2 images, versions 2 and 3.

    offset  size  header, all numbers big-endian
    0       4     QFI, 0xFB
    4       4     version
    8       8     offset of the backing file's name
    20      4     cluster size, as a power of two
    24      8     bytes of the disk
    32      4     encryption: 0 none
    36      4     entries of the L1 table
    40      8     offset of the L1 table
    48      8     offset of the refcount table
    56      4     clusters of the refcount table
    60      4     number of snapshots
    64      8     offset of the snapshot table
    72      8     incompatible features (here and below: version 3)
    96      4     refcount width, as a power of two of bits
    100     4     bytes of the header
    104     1     compression: 0 deflate, 1 zstd

Feature bits: 0 dirty, 1 corrupt, 2 external data file, 3 compression, 4 extended L2. Header extensions
are not read: their backing and data files have no effect without the fields above.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import Decompressor, decompress_deflate, decompress_zstd
from image_service.core.formats.disk.block_map import check_virtual_size
from image_service.core.formats.reading import Span, check_inside, read_exactly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.reading import ReadAt

QCOW2_MAGIC = b"QFI\xfb"

_VERSION_2 = struct.Struct(">4sIQIIQIIQQIIQ")
_VERSION_3 = struct.Struct(">QQQII")
_COMPRESSION_OFFSET = 104
_CLUSTER_BITS = range(9, 21 + 1)
_MIN_EXTENDED_BITS = 14
_MAX_REFCOUNT_ORDER = 6
_MAX_L1_BYTES = 8 << 20  # an image of 64 TiB with clusters of 64 KiB has 1 MiB
_MAX_REFCOUNT_TABLE_BYTES = 8 << 20  # as in qemu
_SNAPSHOT_BYTES = 40
_MAX_SNAPSHOT_TABLE_BYTES = 65536 * _SNAPSHOT_BYTES  # as in qemu
REFCOUNT_TABLE = "refcount table"

_DIRTY, _CORRUPT, _DATA_FILE, _COMPRESSION, _EXTENDED_L2 = (1 << bit for bit in range(5))
_REFUSED: Final[Mapping[int, str]] = {
    _CORRUPT: "is marked as corrupt",
    _DATA_FILE: "has an external data file",
}
_SUPPORTED = _DIRTY | _COMPRESSION | _EXTENDED_L2  # a dirty image has wrong refcounts, and right tables
_COMPRESSIONS: Final[Mapping[int, Decompressor]] = {0: decompress_deflate, 1: decompress_zstd}


@attrs.frozen
class Qcow2Header:
    """The header of an image.

    Args:
        version: 2 or 3.
        virtual_size: bytes of the disk.
        cluster: bytes of a cluster.
        extended: L2 entries have subclusters.
        tables: areas that it refers to; the first one is the L1 table.
    """

    version: int
    virtual_size: int
    cluster: int
    extended: bool
    decompressor: Decompressor
    tables: tuple[Span, ...]

    @property
    def table_bytes(self) -> int:
        """Bytes of the disk that one L2 table is for."""
        return self.cluster // (16 if self.extended else 8) * self.cluster


def read_qcow2_header(read_at: ReadAt, size: int) -> Qcow2Header:
    """Read the header of an image of ``size`` bytes.

    Raises:
        FormatError: it is damaged, or the image needs another file, a key or an unknown feature.
    """
    (
        magic,
        version,
        backing_offset,
        _,
        cluster_bits,
        virtual_size,
        encryption,
        l1_entries,
        l1_offset,
        refcount_offset,
        refcount_clusters,
        snapshots,
        snapshots_offset,
    ) = _VERSION_2.unpack(read_exactly(read_at, 0, _VERSION_2.size))
    if magic != QCOW2_MAGIC or version not in {2, 3}:
        raise FormatError(
            f"no qcow2 image of version 2 or 3: it begins with {magic.hex()}, version {version}"
        )
    if backing_offset:
        raise FormatError("the qcow2 image has a backing file, which is not supported")
    if encryption:
        raise FormatError(f"the qcow2 image is encrypted (method {encryption}), which is not supported")
    if cluster_bits not in _CLUSTER_BITS:
        raise FormatError(f"the qcow2 image has clusters of 2^{cluster_bits} bytes; 2^9 to 2^21 are valid")
    check_virtual_size(virtual_size)
    features, method = _read_version_3(read_at, cluster_bits) if version > 2 else (0, 0)  # noqa: PLR2004 - as above
    extended = bool(features & _EXTENDED_L2)
    tables = [
        (Span("L1 table", l1_offset, l1_entries * 8), _MAX_L1_BYTES),
        (
            Span(REFCOUNT_TABLE, refcount_offset, refcount_clusters << cluster_bits),
            _MAX_REFCOUNT_TABLE_BYTES,
        ),
        # The length of a snapshot is in itself: the least is checked.
        (Span("snapshot table", snapshots_offset, snapshots * _SNAPSHOT_BYTES), _MAX_SNAPSHOT_TABLE_BYTES),
    ]
    for table, limit in tables:
        if table.length > limit:
            raise FormatError(f"the {table.path} has {table.length} bytes; {limit} are supported")
        if table.length and table.offset % (1 << cluster_bits):
            raise FormatError(
                f"no cluster of {1 << cluster_bits} bytes begins where the {table.path} does: {table}"
            )
        if table.length:
            check_inside("the file", table.offset, table.length, size)
    present = tuple(table for table, _ in tables if table.length)
    header = Qcow2Header(version, virtual_size, 1 << cluster_bits, extended, _COMPRESSIONS[method], present)
    needed = -(-virtual_size // header.table_bytes)
    if l1_entries < needed:
        raise FormatError(
            f"the L1 table has {l1_entries} entries; a disk of {virtual_size} bytes needs {needed}"
        )
    return header


def _read_version_3(read_at: ReadAt, cluster_bits: int) -> tuple[int, int]:
    """Return the incompatible features and the compression of an image of version 3."""
    features, _, _, refcount_order, header_bytes = _VERSION_3.unpack(
        read_exactly(read_at, _VERSION_2.size, _VERSION_3.size)
    )
    for bit, fault in _REFUSED.items():
        if features & bit:
            raise FormatError(f"the qcow2 image {fault}, which is not supported")
    if features & ~_SUPPORTED:
        raise FormatError(
            f"the qcow2 image has the unknown incompatible features {features & ~_SUPPORTED:#x}"
        )
    if not _COMPRESSION_OFFSET <= header_bytes <= 1 << cluster_bits or header_bytes % 8:
        raise FormatError(
            f"the qcow2 header has {header_bytes} bytes; multiples of 8 from 104 to {1 << cluster_bits} fit"
        )
    if refcount_order > _MAX_REFCOUNT_ORDER:
        raise FormatError(f"the qcow2 image has refcounts of 2^{refcount_order} bits; 64 is the most")
    if features & _EXTENDED_L2 and cluster_bits < _MIN_EXTENDED_BITS:
        raise FormatError(
            f"extended L2 entries need clusters of 16 KiB or more, not of {1 << cluster_bits} bytes"
        )
    stated = read_exactly(read_at, _COMPRESSION_OFFSET, 1)[0] if header_bytes > _COMPRESSION_OFFSET else 0
    if stated not in _COMPRESSIONS or bool(stated) != bool(features & _COMPRESSION):
        raise FormatError(
            f"the qcow2 image has the compression {stated}; 0 (deflate) and 1 (zstd) are supported"
        )
    return features, stated
