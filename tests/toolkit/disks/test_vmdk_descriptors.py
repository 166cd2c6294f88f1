"""Descriptors of VMDK images in other encodings than ASCII, and extents without a descriptor."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import UnsafeImage
from image_service.toolkit.disks.opening import open_image
from tests.acceptance.clients import run_client
from tests.toolkit.corpus.images import disk_content, image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUBFORMATS = ("monolithicSparse", "streamOptimized")


def with_descriptor(path: Path, subformat: str, *changes: tuple[bytes, bytes]) -> Path:
    """Write a VMDK with other texts in its descriptor."""
    data = bytearray(image("vmdk", f"subformat={subformat}"))
    start, length = (512 * number for number in struct.unpack_from("<QQ", data, 28))
    text = bytes(data[start : start + length]).rstrip(b"\0")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    data[start : start + length] = text.ljust(length, b"\0")
    path.write_bytes(data)
    return path


def name_of(subformat: str) -> bytes:
    """Return the name, in quotes, of the extent in a VMDK by qemu-img."""
    return image("vmdk", f"subformat={subformat}").split(b"SPARSE ", 1)[1].split(b"\n", 1)[0]


@pytest.mark.parametrize("subformat", SUBFORMATS)
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("UTF-8", "Müller-disk1.vmdk".encode()),
        ("GBK", "测试.vmdk".encode("gbk")),
        ("GBK", "乗淺.vmdk".encode("gbk")),  # the second bytes are a backslash
        ("Shift_JIS", "表示.vmdk".encode("shift_jis")),  # likewise
        ("windows-1252", "disk…é.vmdk".encode("cp1252")),  # 0x85 is a line end in Latin-1
        ("unknown-1", b"\xe9\xff.vmdk"),
        ("", b"\xe9\xff.vmdk"),
    ],
)
def test_names_of_any_encoding_are_read(subformat: str, encoding: str, name: bytes, tmp_path: Path) -> None:
    declared = f'version=1\nencoding="{encoding}"'.encode() if encoding else b"version=1"
    changes = ((b"version=1", declared), (name_of(subformat), b'"' + name + b'"'))
    path = with_descriptor(tmp_path / "a.vmdk", subformat, *changes)
    with open_image(path) as opened:
        content = disk_content()
        assert opened.disk.read_at(0, len(content)) == content
    run_client("qemu-img", "convert", "-f", "vmdk", "-O", "raw", path, tmp_path / "raw")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"version=1", 'version=1\n# é\nparentFileNameHint="é.vmdk"'.encode(), "has a parent"),
        (b"parentCID=ffffffff", "parentCID=00000001\n# é".encode(), "has a parent"),
        (b'createType="monolithicSparse"', 'createType="monolithicFlat"\n# é'.encode(), "of type"),
        (b'SPARSE "', 'SPARSE "/é/'.encode(), "a path in its name"),
        (b"version=1", b'version=1\nencoding="utf-16"\nRW 8 FLAT "\xff/etc/passwd" 0', "has 2 extents"),
    ],
)
def test_other_letters_hide_nothing(old: bytes, new: bytes, reason: str, tmp_path: Path) -> None:
    path = with_descriptor(tmp_path / "a.vmdk", "monolithicSparse", (old, new))
    with pytest.raises(UnsafeImage, match=reason), open_image(path):
        pass


def lone_sparse_extent() -> bytes:
    """Return the first extent of a split image."""
    data = bytearray(image("vmdk", "subformat=monolithicSparse"))
    struct.pack_into("<QQ", data, 28, 0, 0)
    return bytes(data)


SESPARSE = struct.pack("<QQQ", 0xCAFEBABE, 0x200000001, 16384)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SESPARSE.ljust(1 << 20, b"\0"), r"one extent of a VMDK \(seSparse\)"),
        (lambda: b"COWD".ljust(1 << 20, b"\0"), "no VMDK header"),
        (lone_sparse_extent, "one extent of a split image"),
    ],
)
def test_lone_extent_is_refused_by_name(make: Callable[[], bytes], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "disk-s001.vmdk"
    path.write_bytes(make())
    with pytest.raises(UnsafeImage, match=reason), open_image(path):
        pass
