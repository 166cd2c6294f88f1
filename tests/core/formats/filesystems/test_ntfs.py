from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.filesystems.ntfs import Ntfs, read_ntfs
from image_service.core.formats.reading import Span, SpanReader
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.file_systems import noise
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIB = 1024 * 1024
FILES = {
    "resident": b"small",
    "empty": b"",
    "one-cluster": noise(4096),
    "two-clusters": noise(4097),
    "large": noise(700_000),
    "Zeros": bytes(50_000),
    **{f"a-long-name-{number:03}.with-extension": b"%d" % number for number in range(60)},
}
CLUSTERS = (512, 4096, 65536)


def make_ntfs(directory: Path, files: Mapping[str, bytes], options: str = "") -> bytes:
    """Return a volume with files in its root; the directory gets blocks of entries if they are many."""
    image = directory / "ntfs.img"
    image.touch()
    os.truncate(image, 8 * MIB)
    run_client("mkfs.ntfs", "-Q", "-q", "-F", "-L", "Some Label", *options.split(), image)
    for name, content in files.items():
        (directory / "file").write_bytes(content)
        run_client("ntfscp", "-q", image, directory / "file", name)
    return image.read_bytes()


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_ntfs(tmp_path_factory.mktemp("ntfs"), {"resident": b"small", "large": noise(20_000)})


def open_ntfs(image: bytes, limit: int = 1 << 40) -> Ntfs:
    return read_ntfs(SpanReader(MeteredReader(image, limit), Span("ntfs", 0, len(image))), len(image))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_all_files_are_read_back(tmp_path: Path, cluster: int) -> None:
    ntfs = open_ntfs(make_ntfs(tmp_path, FILES, f"-c {cluster}"))

    entries = ntfs.root.entries()

    assert {name: entries[name]().read() for name in entries if name in FILES} == FILES
    assert {name for name in entries if name not in FILES and not name.startswith("$")} == {"."}
    assert ntfs.label == "Some Label"


def test_names_are_found_in_any_case(volume: bytes) -> None:
    root = open_ntfs(volume).root

    assert find_node(root, "RESIDENT").read() == b"small"
    with pytest.raises(FileNotInImage):
        find_node(root, "Windows/System32")


def test_truncated_volume_is_refused(volume: bytes) -> None:
    with pytest.raises(FormatError, match="incomplete"):
        open_ntfs(volume[:MIB])


def test_torn_record_is_refused(volume: bytes) -> None:
    mft = int.from_bytes(volume[48:56], "little") * 4096
    image = bytearray(volume)
    image[mft + 5 * 1024 + 510] ^= 1  # the end of the first sector of the root's record

    with pytest.raises(FormatError, match="record 5 was not written as a whole"):
        open_ntfs(bytes(image))


def test_altered_bytes_are_read_or_refused(volume: bytes) -> None:
    mft = int.from_bytes(volume[48:56], "little") * 4096
    used = [
        offset
        for offset in (*range(90), *range(mft, mft + 72 * 1024))
        if volume[offset] and offset % 512 < 510
    ]

    @given(st.sampled_from(used), st.binary(min_size=1, max_size=4))
    def alter(position: int, data: bytes) -> None:
        meter = MeteredReader(volume, 1 << 26)

        def read_at(offset: int, length: int) -> bytes:
            block = bytearray(meter(offset, length))
            for index, byte in enumerate(data, start=position - offset):
                if 0 <= index < len(block):
                    block[index] = byte
            return bytes(block)

        try:
            root = read_ntfs(SpanReader(read_at, Span("ntfs", 0, len(volume))), len(volume)).root
            find_node(root, "large").read()
        except (FormatError, FileNotInImage):
            pass

    alter()
