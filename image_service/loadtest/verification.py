"""Whether what was read is what it has to be: one version for a whole mount, equal bytes at equal offsets."""

from __future__ import annotations

import re
from array import array
from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

from image_service.loadtest.profiles import BLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOTS = 1_048_573
"""Blocks whose digests are kept: 4 GiB of images in 16 MiB of memory. A prime, over which keys spread."""
_BLOCKS_OF_A_VERSION = 1 << 40
_VERSIONS = 1 << 22
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_CHECKSUM = re.compile(rb"([0-9a-f]{64})  [^\n]*\n?")
OK, PARTIAL_CONTENT = 200, 206


class Fault(StrEnum):
    """What must not be, however much the load."""

    RANGE_IGNORED = "range-ignored"
    CONTENT_RANGE = "content-range"
    LENGTH = "length"
    SIZE_CHANGED = "size-changed"
    ETAG_CHANGED = "etag-changed"
    BYTES_DIFFER = "bytes-differ"
    DIGEST_DIFFERS = "digest-differs"


@attrs.frozen
class Answer:
    """The head of a response.

    Args:
        status: its code.
        fields: values by lower-case name.
    """

    status: int
    fields: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """Content-Length; None: there is none, or no number."""
        text = self.fields.get("content-length", "")
        return int(text) if text.isdecimal() else None


class Blocks:
    """Digests of the aligned blocks that were read, for comparison with what is read again.

    Each block has one slot that it shares with others; the latest has it. So memory is bounded, the check
    costs little, and of very many images only the latest reads are compared.

    Args:
        slots: how many; best a prime.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._keys = array("q", bytes(8 * slots))
        self._digests = array("q", bytes(8 * slots))
        self._versions: dict[tuple[int, str], int] = {}
        self._latest = 0
        self.compared = 0

    def version(self, image: int, etag: str | None) -> int:
        """Give the number of what must have the same bytes wherever it is read.

        Args:
            image: its number.
            etag: as it was told; None: nothing tells whether another mount has the same bytes.

        Returns:
            the number of the image with this ETag; without one, a new number.
        """
        if etag is None:
            return self._new()
        key = image, etag
        if key not in self._versions:
            self._versions[key] = self._new()
        return self._versions[key]

    def check(self, version: int, start: int, data: bytes) -> int | None:
        """Compare blocks with what was read of them before.

        Args:
            version: as ``version`` gave it.
            start: offset of the first block, a multiple of ``BLOCK``.
            data: whole blocks; the last may be shorter where the image ends.

        Returns:
            offset of the first block that differs; None: none does.
        """
        keys, digests, view = self._keys, self._digests, memoryview(data)
        key = version * _BLOCKS_OF_A_VERSION + start // BLOCK
        differs = None
        for position in range(0, len(data), BLOCK):
            digest, slot = hash(view[position : position + BLOCK]), key % self._slots
            if keys[slot] != key:
                keys[slot], digests[slot] = key, digest
            else:
                self.compared += 1
                if digests[slot] != digest and differs is None:
                    differs = start + position
            key += 1
        return differs

    def _new(self) -> int:
        self._latest = self._latest % (_VERSIONS - 1) + 1  # 0 is nobody's: empty slots have that key
        return self._latest


class Content:
    """The content of one answer, as it comes: cut into aligned blocks, which are compared.

    Args:
        blocks: what they are compared with.
        version: as ``Blocks.version`` gave it.
        start: offset of its first byte in the image.
        size: of the image.
    """

    def __init__(self, blocks: Blocks, version: int, start: int, size: int) -> None:
        self._blocks = blocks
        self._version = version
        self._position = start
        self._size = size
        self._rest = b""
        self.differs_at: int | None = None

    def feed(self, data: bytes) -> None:
        """Take more of it."""
        data = self._rest + data if self._rest else data
        position = self._position
        stop = position + len(data)
        first = position + -position % BLOCK
        last = stop if stop == self._size else stop - stop % BLOCK
        if last <= first:
            self._rest = data
            return
        differs_at = self._blocks.check(self._version, first, data[first - position : last - position])
        self._rest, self._position = data[last - position :], last
        if self.differs_at is None:
            self.differs_at = differs_at


@attrs.define
class Mount:
    """What all answers of one mount have in common.

    Args:
        image: number of the image.
        blocks: what was read of it, by all.
        size: of the image; None until the first answer.
        etag: of the version; None: none, or not known yet.
        version: its number; None until the first answer.
    """

    image: int
    blocks: Blocks = attrs.field(repr=False)
    size: int | None = None
    etag: str | None = None
    version: int | None = None

    def check_head(self, answer: Answer) -> Fault | None:
        """Judge an answer that is about the whole image."""
        if answer.length is None:
            return Fault.LENGTH
        return self._check_version(answer, answer.length)

    def check_range(self, answer: Answer, start: int, stop: int) -> Fault | None:
        """Judge the head of an answer to a request for a range of the image."""
        if answer.status == OK:
            return Fault.RANGE_IGNORED
        told = _CONTENT_RANGE.fullmatch(answer.fields.get("content-range", ""))
        if told is None or (int(told[1]), int(told[2])) != (start, stop - 1):
            return Fault.CONTENT_RANGE
        if answer.length != stop - start:
            return Fault.LENGTH
        return self._check_version(answer, int(told[3]))

    def content(self, start: int) -> Content:
        """Begin to compare content; an answer must have been judged before."""
        assert self.version is not None  # noqa: S101 - for the type
        assert self.size is not None  # noqa: S101 - same
        return Content(self.blocks, self.version, start, self.size)

    def _check_version(self, answer: Answer, size: int) -> Fault | None:
        etag = answer.fields.get("etag")
        if self.version is None:
            self.size, self.etag = size, etag
            self.version = self.blocks.version(self.image, etag)
        if size != self.size:
            return Fault.SIZE_CHANGED
        return None if etag == self.etag else Fault.ETAG_CHANGED


def parse_checksum(body: bytes) -> str | None:
    """Read what ``sha256sum`` writes for one file.

    Args:
        body: its line.

    Returns:
        64 hexadecimal digits; None: it is something else.
    """
    found = _CHECKSUM.fullmatch(body)
    return found[1].decode() if found else None
