from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import pytest

from image_service.server.standalone.sample import (
    SAMPLE_ARCHITECTURE,
    SAMPLE_OPENSHIFT_VERSION,
    SAMPLE_VERSION,
    unpack_sample,
    unpack_sample_disk,
)
from image_service.settings.os_images import FULL_ISO, parse_os_images

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_sample_is_written(tmp_path: Path) -> None:
    sample = unpack_sample(tmp_path)
    assert sample.read_bytes()[16 * 2048 : 16 * 2048 + 6] == b"\x01CD001"
    assert list(tmp_path.iterdir()) == [sample]


def test_equal_sample_is_not_rewritten(tmp_path: Path) -> None:
    before = unpack_sample(tmp_path).stat()
    after = unpack_sample(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_sample_disk_stays_compressed(tmp_path: Path) -> None:
    disk = unpack_sample_disk(tmp_path)
    assert lzma.decompress(disk.read_bytes())[512:520] == b"EFI PART"
    assert unpack_sample_disk(tmp_path) == disk
    assert list(tmp_path.iterdir()) == [disk]


@pytest.mark.parametrize("content", [b"", b"of another release"])
def test_different_sample_is_replaced(tmp_path: Path, content: bytes) -> None:
    expected = unpack_sample(tmp_path).read_bytes()
    (tmp_path / "sample.iso").write_bytes(content)
    with (tmp_path / "sample.iso").open("rb") as reader:
        assert unpack_sample(tmp_path).read_bytes() == expected
        assert reader.read() == content


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "sample.iso").mkdir()
    with pytest.raises(IsADirectoryError):
        unpack_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sample.iso"]


def test_sample_names_are_valid_in_os_images() -> None:
    image = parse_os_images(
        f'[{{"version": "{SAMPLE_VERSION}", "openshift_version": "{SAMPLE_OPENSHIFT_VERSION}",'
        f' "cpu_architecture": "{SAMPLE_ARCHITECTURE}", "url": "file:///sample.iso"}}]'
    )
    assert image[0].image_type == FULL_ISO
