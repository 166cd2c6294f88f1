"""Hostile qcow2 images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.acceptance.clients import run_client
from tests.toolkit.corpus.images import DISK_BYTES, Hostile, convert, file_of, image, number_at, patched
from tests.toolkit.corpus.others import luks_volume
from tests.toolkit.corpus.vmdk import flat_vmdk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.toolkit.corpus.images import Build, Change

_OFFSET = (1 << 56) - 512
_COPIED, _COMPRESSED = 1 << 63, 1 << 62
_FAR = 1 << 50


def backing_file(directory: Path, host: Path) -> Path:
    """Build the first attack: a file of the host is the backing file; the name is that of a raw disk."""
    path = directory / "backing.raw"
    run_client("qemu-img", "create", "-u", "-f", "qcow2", "-F", "raw", "-b", host, path, str(DISK_BYTES))
    return path


def data_file(directory: Path, host: Path) -> Path:
    """Build the third attack: the clusters of an image are a file of the host."""
    path, kept = directory / "data.qcow2", host.read_bytes()
    options = f"data_file={host},data_file_raw=on"
    run_client("qemu-img", "create", "-f", "qcow2", "-o", options, path, str(DISK_BYTES))
    host.write_bytes(kept)  # qemu-img has emptied it
    return path


def l2_table(data: bytes) -> int:
    """Return the offset of the first L2 table of an image."""
    return number_at(data, number_at(data, 40, ">Q"), ">Q") & _OFFSET


def _changed(*changes: Change) -> Build:
    return file_of(lambda: patched(image("qcow2"), *changes))


def _backing_name(name: str) -> Build:
    def make() -> bytes:
        data = patched(image("qcow2"), (8, ">Q", 512), (16, ">I", len(name)))
        return data[:512] + name.encode() + data[512 + len(name) :]

    return file_of(make)


def _l1_entry(index: int, number: int) -> Build:
    """Change an L1 entry; with clusters of 4 KiB each is for 2 MiB."""

    def make() -> bytes:
        data = image("qcow2", "cluster_size=4096")
        return patched(data, (number_at(data, 40, ">Q") + 8 * index, ">Q", number))

    return file_of(make)


def _table_twice() -> bytes:
    data = image("qcow2", "cluster_size=4096")
    l1 = number_at(data, 40, ">Q")
    return patched(data, (l1 + 8, ">Q", number_at(data, l1, ">Q")))


def _l2_entry(number: int) -> Build:
    return file_of(lambda: patched(image("qcow2"), (l2_table(image("qcow2")), ">Q", number)))


def _cluster_twice() -> bytes:
    data = image("qcow2")
    table = l2_table(data)
    return patched(data, (table + 8, ">Q", number_at(data, table, ">Q")))


def _cluster_is(offset_of: Callable[[bytes], int]) -> Build:
    """Have the first cluster at the offset of a table."""

    def make() -> bytes:
        data = image("qcow2")
        return patched(data, (l2_table(data), ">Q", _COPIED | offset_of(data)))

    return file_of(make)


def _large(size: str) -> Build:
    def build(directory: Path, _host: Path) -> Path:
        path = directory / "large.qcow2"
        run_client("qemu-img", "create", "-f", "qcow2", "-o", "cluster_size=2M", path, size)
        return path

    return build


def _nested(make: Callable[[Path, Path], bytes]) -> Build:
    def build(directory: Path, host: Path) -> Path:
        path = directory / "nested.qcow2"
        path.write_bytes(convert(make(directory, host), "qcow2"))
        return path

    return build


def _tables_in_holes(directory: Path, _host: Path) -> Path:
    """Build an image of 8 MiB that has L2 tables of 4 GiB, all in holes."""
    path = directory / "holes.qcow2"
    entries, first = 1 << 20, 1 << 24
    data = patched(
        image("qcow2", "cluster_size=4096"),
        (24, ">Q", entries << 21),
        (36, ">I", entries),
        (40, ">Q", 1 << 23),
    )
    with path.open("wb") as file:
        file.write(data)
        file.seek(1 << 23)
        file.writelines((_COPIED | first + 4096 * index).to_bytes(8) for index in range(entries))
        file.truncate(first + 4096 * entries)
    return path


_FAR_OUTSIDE = "outside|leaves"
HOSTILE = (
    Hostile("qcow2-backing-file", "backing file", backing_file),
    Hostile("qcow2-backing-file-declared-raw", "declared .* raw.* qcow2", backing_file, "raw"),
    Hostile("qcow2-data-file", "data.file", data_file),
    Hostile("qcow2-backing-of-network", "backing file", _backing_name("nbd://127.0.0.1:10809/export")),
    Hostile(
        "qcow2-backing-of-json", "backing file", _backing_name('json:{"driver":"file","filename":"/etc/x"}')
    ),
    Hostile("qcow2-data-file-without-name", "data.file", _changed((72, ">Q", 1 << 2))),
    Hostile("qcow2-encrypted-by-luks", "encrypted", _changed((32, ">I", 2))),
    Hostile("qcow2-encrypted-by-aes", "encrypted", _changed((32, ">I", 1))),
    Hostile("qcow2-corrupt", "corrupt", _changed((72, ">Q", 1 << 1))),
    Hostile("qcow2-unknown-feature", "unknown incompatible", _changed((72, ">Q", 1 << 5))),
    Hostile("qcow2-last-feature", "unknown incompatible", _changed((72, ">Q", 1 << 63))),
    Hostile("qcow2-version-1", "version 1", _changed((4, ">I", 1))),
    Hostile("qcow2-version-4", "version 4", _changed((4, ">I", 4))),
    Hostile("qcow2-size-2-63", "claims", _changed((24, ">Q", 1 << 63))),
    Hostile("qcow2-size-64-bits", "claims", _changed((24, ">Q", (1 << 64) - 512))),
    Hostile("qcow2-size-of-no-whole-sectors", "not whole sectors", _changed((24, ">Q", DISK_BYTES - 100))),
    Hostile("qcow2-sparse-bomb", "claims .* the limit is", _large("64T")),
    Hostile("qcow2-tables-in-holes", "in holes", _tables_in_holes),
    Hostile("qcow2-l1-too-small", "L1 table", _changed((24, ">Q", 1 << 44))),
    Hostile("qcow2-l1-outside", _FAR_OUTSIDE, _changed((40, ">Q", _FAR))),
    Hostile("qcow2-l1-wraps", _FAR_OUTSIDE, _changed((40, ">Q", (1 << 64) - 65536))),
    Hostile("qcow2-l1-of-32-gib", "L1 table", _changed((36, ">I", 0xFFFFFFFF))),
    Hostile("qcow2-l1-entry-outside", _FAR_OUTSIDE, _l1_entry(0, _COPIED | _FAR)),
    Hostile("qcow2-l1-entry-unaligned", "damaged", _l1_entry(0, 512)),
    Hostile("qcow2-l2-table-twice", "overlap|twice", file_of(_table_twice)),
    Hostile("qcow2-l2-table-is-l1", "overlap|twice", _l1_entry(0, _COPIED | 12288)),
    Hostile("qcow2-cluster-outside", _FAR_OUTSIDE, _l2_entry(_COPIED | _FAR)),
    Hostile("qcow2-cluster-twice", "overlap|twice", file_of(_cluster_twice)),
    Hostile("qcow2-cluster-is-its-table", "overlap|twice", _cluster_is(l2_table)),
    Hostile("qcow2-cluster-is-l1", "overlap|twice", _cluster_is(lambda data: number_at(data, 40, ">Q"))),
    Hostile(
        "qcow2-cluster-is-refcounts", "overlap|twice", _cluster_is(lambda data: number_at(data, 48, ">Q"))
    ),
    Hostile("qcow2-compressed-outside", "damaged|outside|leaves", _l2_entry(_COMPRESSED | 1 << 40)),
    Hostile("qcow2-reserved-bits", "damaged", _l2_entry(_COPIED | 1 << 57)),
    Hostile("qcow2-refcounts-outside", _FAR_OUTSIDE, _changed((48, ">Q", _FAR))),
    Hostile("qcow2-refcounts-of-16-tib", "refcount table", _changed((56, ">I", 0xFFFFFFFF))),
    Hostile("qcow2-snapshots-outside", _FAR_OUTSIDE, _changed((60, ">I", 1), (64, ">Q", _FAR))),
    Hostile("qcow2-snapshots-2-32", "snapshot", _changed((60, ">I", 0xFFFFFFFF))),
    Hostile("qcow2-clusters-of-1-byte", "clusters", _changed((20, ">I", 0))),
    Hostile("qcow2-clusters-of-2-63", "clusters", _changed((20, ">I", 63))),
    Hostile("qcow2-header-alone", "ends too soon|outside|leaves", file_of(lambda: image("qcow2")[:512])),
    Hostile("qcow2-magic-alone", "ends too soon", file_of(lambda: image("qcow2")[:20])),
    Hostile(
        "qcow2-nested-qcow2",
        "inside .* qcow2",
        _nested(lambda directory, host: backing_file(directory, host).read_bytes()),
    ),
    Hostile(
        "qcow2-nested-vmdk-descriptor",
        "inside .* vmdk",
        _nested(lambda directory, host: flat_vmdk(directory, host).read_bytes().ljust(65536, b"\n")),
    ),
    Hostile(
        "qcow2-nested-fixed-vhd",
        "inside .* vhd",
        _nested(lambda _directory, _host: image("vpc", "subformat=fixed,force_size=on")),
    ),
    Hostile(
        "qcow2-nested-luks",
        "inside .* luks",
        _nested(lambda _directory, _host: luks_volume()),
    ),
    Hostile(
        "qcow2-with-vhd-footer",
        "any of qcow2, vhd",
        file_of(lambda: image("qcow2") + image("vpc", "subformat=fixed,force_size=on")[-512:]),
    ),
)
