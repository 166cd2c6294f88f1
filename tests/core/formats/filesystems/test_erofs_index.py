"""The index of compressed files, compared with one rendered from the description of the format."""

from __future__ import annotations

import struct
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.erofs_index import PLAIN, ErofsExtent, read_index
from tests.core.formats.filesystems.file_systems import window

COMPRESSED, CONTINUES = 1, 2
SHORT, SEVERAL, END_PACKED = 1, 6, 32


@attrs.frozen
class File:
    """A file's extents, and how their index is rendered."""

    extents: list[ErofsExtent]
    block_bits: int
    is_compact: bool
    flags: int
    before: int  # bytes before the header
    is_ended: bool  # the last cluster has the end of the file, as with mkfs.erofs

    @property
    def size(self) -> int:
        return self.extents[-1].start + self.extents[-1].length

    def write(self) -> bytes:
        header = struct.pack("<IHBB", (self.extents[-1].packed or 0) & 0xFFFFFFFF, self.flags, 1, 0)
        index = self.packs() if self.is_compact else bytes(8) + self.entries()
        return bytes(self.before) + bytes(-self.before % 8) + header + index

    def clusters(self) -> list[tuple[int, int, int]]:
        """Yield type, value and first block of each cluster."""
        count = -(-self.size >> self.block_bits)
        clusters = [(CONTINUES, 2, 0)] * count
        for extent in self.extents:
            cluster, offset = divmod(extent.start, 1 << self.block_bits)
            clusters[cluster] = (extent.type, offset, extent.block)
            if cluster + 1 < count and self.flags & SEVERAL:
                clusters[cluster + 1] = (CONTINUES, 0x800 | extent.blocks, 0)
        if self.is_ended:
            clusters[-1] = (PLAIN, self.size % (1 << self.block_bits), 0)
        return clusters

    def entries(self) -> bytes:
        return b"".join(
            struct.pack("<HHI", kind, 0, value | 7 << 16)
            if kind == CONTINUES
            else struct.pack("<HHI", kind, value, block)
            for kind, value, block in self.clusters()
        )

    def packs(self) -> bytes:
        """Yield packs of 2 up to a multiple of 32 bytes, full ones of 16, and again of 2."""
        clusters = self.clusters()
        start = self.before + -self.before % 8 + 8
        aligned = -start % 32 // 4
        short = max(len(clusters) - aligned, 0) // 16 * 16 if self.flags & SHORT else 0
        written, at = b"", 0
        while at < len(clusters):
            number = 16 if aligned <= at < aligned + short else 2
            written += self.pack(clusters, at, number)
            at += number
        return written

    def pack(self, clusters: list[tuple[int, int, int]], at: int, number: int) -> bytes:
        width = 14 if number == 16 else 16
        bits = 0
        for place, (kind, value, _) in enumerate(clusters[at : at + number]):
            bits |= (kind << max(12, self.block_bits) | value) << place * width
        block = self.pack_block(at, starts_amid=clusters[at][0] == CONTINUES)
        return bits.to_bytes(number * width // 8, "little") + struct.pack("<I", block)

    def pack_block(self, at: int, *, starts_amid: bool) -> int:
        """Return the block of the first extent with a block count; or the one before the first extent."""
        first = at - 1 if self.flags & SEVERAL and starts_amid else at
        for extent in self.extents:
            if extent.start >> self.block_bits >= first:
                return extent.block if self.flags & SEVERAL else extent.block - 1
        return 0


@st.composite
def files(draw: st.DrawFn) -> File:
    block_bits = draw(st.integers(9, 14))
    is_compact = draw(st.booleans())
    flags = draw(st.sampled_from([0, SEVERAL])) | draw(st.sampled_from([0, END_PACKED]))
    if is_compact and block_bits <= 12:
        flags |= draw(st.sampled_from([0, SHORT]))
    block = 1 << block_bits
    steps = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, block - 1)), max_size=40))
    begins = [0]
    for step, offset in steps:
        begins.append((begins[-1] // block + step) * block + offset)
    size = begins[-1] + draw(st.integers(1, 20 * block))
    is_ended = size % block > 0 and size // block > begins[-1] // block and draw(st.booleans())
    extents: list[ErofsExtent] = []
    place = draw(st.integers(1, 2**31))
    for start, stop in pairwise([*begins, size]):
        follows = stop // block if stop < size or is_ended else -(-size // block)
        is_alone = follows == start // block + 1
        blocks = 1 if is_alone or not flags & SEVERAL else draw(st.integers(1, 0x7FF))
        kind = draw(st.sampled_from([PLAIN, COMPRESSED]))
        extents.append(ErofsExtent(start, stop - start, kind, place, blocks))
        place += blocks if is_compact else draw(st.integers(0, 1000))
    if flags & END_PACKED:
        low = draw(st.integers(0, 2**32 - 1))
        packed = low if is_compact else extents[-1].block << 32 | low
        extents[-1] = attrs.evolve(extents[-1], packed=packed)
    return File(extents, block_bits, is_compact, flags, draw(st.integers(0, 70)), is_ended)


@given(file=files(), data=st.data())
def test_extents_are_found_for_any_range(file: File, data: st.DataObject) -> None:
    begins = [extent.start for extent in file.extents]
    start = data.draw(st.sampled_from(begins) | st.integers(0, file.size - 1))
    ends = [end for end in (*begins, file.size) if end > start]
    stop = data.draw(st.sampled_from(ends) | st.integers(start + 1, file.size))
    read_at = window(file.write())
    index = read_index(read_at, file.before, file.size, file.block_bits, is_compact=file.is_compact)
    expected = [
        extent for extent in file.extents if extent.start < stop and extent.start + extent.length > start
    ]
    assert list(index.find_extents(start, stop)) == expected


@pytest.mark.parametrize("is_compact", [False, True])
def test_extents_far_from_the_start_are_found(is_compact: bool) -> None:  # noqa: FBT001 - the case itself
    extents = [
        ErofsExtent(number * 3 * 4096 + 7, 3 * 4096, COMPRESSED, 9 + number, 1) for number in range(4000)
    ]
    extents[0] = ErofsExtent(0, 3 * 4096 + 7, COMPRESSED, 9, 1)
    file = File(extents, 12, is_compact, SHORT * is_compact, before=0, is_ended=False)
    index = read_index(window(file.write()), 0, file.size, 12, is_compact=is_compact)
    for first in (0, 2000, 3998):
        start, stop = extents[first].start + 9000, extents[first + 1].start + 1
        assert list(index.find_extents(start, stop)) == extents[first : first + 2]


@given(
    index=st.binary(max_size=600), start=st.integers(0, 2**62), length=st.integers(1, 2**17), data=st.data()
)
def test_random_bytes_raise_format_errors_only(
    index: bytes, start: int, length: int, data: st.DataObject
) -> None:
    flags = data.draw(st.sampled_from([0, 1, 2, 3, 7, 32, 63 - 8]))
    size = data.draw(st.sampled_from([start + length, start + length + 1, 2**63]))
    read_at = window(struct.pack("<IHBB", 0, flags, 0, 0) + index, limit=1_000_000)
    try:
        found = read_index(
            read_at, 0, size, data.draw(st.integers(9, 12)), is_compact=data.draw(st.booleans())
        )
        extents = list(found.find_extents(start, start + length))
    except FormatError:
        return
    assert extents[0].start <= start
    assert extents[-1].start + extents[-1].length >= start + length


def one(
    *, is_compact: bool = True, flags: int = 0, size: int = 10_000, entries: bytes = bytes(16)
) -> list[ErofsExtent]:
    """Return the extents of a file in blocks of 4096 bytes."""
    image = struct.pack("<IHBB", 5, flags, 1, 0) + bytes(0 if is_compact else 8) + entries
    return list(read_index(window(image), 0, size, 12, is_compact=is_compact).find_extents(0, size))


def test_whole_file_in_the_packed_node_is_one_extent() -> None:
    image = struct.pack("<Q", 1 << 63 | 2**40 + 3)
    for is_compact in (False, True):
        index = read_index(window(image), 0, 10**9, 12, is_compact=is_compact)
        assert list(index.find_extents(9, 10**9)) == [ErofsExtent(0, 10**9, PLAIN, 0, 0, 2**40 + 3)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (struct.pack("<HHI", 0x8001, 0, 9), "shares extents"),
        (struct.pack("<HHI", 3, 0, 9), "type 3 at offset 0"),
        (struct.pack("<HHI", 1, 4096, 9), "type 1 at offset 4096"),
        (struct.pack("<HHI", 1, 1, 9), "no extent has offset 0"),
        (struct.pack("<HHI", 2, 0, 0), "no extent has offset 0"),
    ],
)
def test_unsupported_entries_are_refused(entries: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        one(is_compact=False, size=4096, entries=entries)


@pytest.mark.parametrize(("block_bits", "flags"), [(13, SHORT), (15, 0)])
def test_packs_with_large_blocks_are_refused(block_bits: int, flags: int) -> None:
    header = struct.pack("<IHBB", 0, flags, 1, 0)
    with pytest.raises(FormatError, match=f"with blocks of {1 << block_bits} bytes"):
        read_index(window(header), 0, 10**6, block_bits, is_compact=True)


def test_extent_without_block_count_has_zero_blocks() -> None:
    entries = struct.pack("<HHI", 1, 0, 9) + struct.pack("<HHI", 2, 0, 1)
    assert [extent.blocks for extent in one(is_compact=False, flags=2, size=8192, entries=entries)] == [0]


@pytest.mark.parametrize(
    ("start", "message"), [(0, "no extent starts within"), (2**50, "no extent has offset")]
)
def test_search_for_an_extent_is_bounded(start: int, message: str) -> None:
    """An extent starts in the first cluster alone, of a file of 2**60 bytes."""
    reads: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        reads.append(offset)
        if offset == 0:
            return struct.pack("<IHBB", 0, 0, 0, 0)
        return struct.pack("<HHI", 1 if offset == 16 else CONTINUES, 0, 0)[:length]

    index = read_index(read_at, 0, 2**60, 12, is_compact=False)
    with pytest.raises(FormatError, match=message):
        list(index.find_extents(start, start + 1))
    assert len(reads) < 5000
