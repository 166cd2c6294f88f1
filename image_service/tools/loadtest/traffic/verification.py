"""Verifies responses: one version for a whole mount, equal bytes at equal offsets."""

from __future__ import annotations

import json
import re
from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.tools.loadtest.traffic.profiles import BLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOTS = 1_048_573
"""Number of block digests kept: 4 GiB of images in 16 MiB of memory. A prime, so that keys spread."""
_BLOCKS_OF_A_VERSION = 1 << 40
_VERSIONS = 1 << 22
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_CHECKSUM = re.compile(rb"([0-9a-f]{64})  [^\n]*\n?")
OK, PARTIAL_CONTENT = 200, 206
_MAX_DETAIL = 300


class VerificationFault(StrEnum):
    """The faults of a response, which no load excuses."""

    RANGE_IGNORED = "range-ignored"
    CONTENT_RANGE = "content-range"
    LENGTH = "length"
    SIZE_CHANGED = "size-changed"
    ETAG_CHANGED = "etag-changed"
    BYTES_DIFFER = "bytes-differ"
    DIGEST_DIFFERS = "digest-differs"


@attrs.frozen
class ResponseHead:
    """The head of a response.

    Args:
        fields: values by lower-case name.
    """

    status: int
    fields: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """Content-Length; None if it is absent or not a number."""
        text = self.fields.get("content-length", "")
        return int(text) if text.isdecimal() else None


class ReadComparer(Protocol):
    """Compares what is read with what the bytes must be."""

    compared: int
    """How many pieces were compared."""

    def version(self, image: int, etag: str | None) -> int:
        """Return the number of an image's version."""

    def check(self, version: int, start: int, data: bytes) -> int | None:
        """Compare blocks; return an offset at or before which they differ, or None.

        Args:
            start: offset of the first block, a multiple of ``BLOCK``.
            data: whole blocks; the last of the image may be shorter.
        """


class BlockDigests:
    """Digests of the aligned blocks that were read, for comparison with later reads.

    Several blocks share a slot, which holds the latest of them. So memory is bounded, and of very many images
    only the latest reads are compared.

    Args:
        slots: how many; preferably a prime.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._keys = array("q", bytes(8 * slots))
        self._digests = array("q", bytes(8 * slots))
        self._versions: dict[tuple[int, str] | None, int] = {}
        self._latest = 0
        self.compared = 0

    def version(self, image: int, etag: str | None) -> int:
        """Return the number of an image's version; without an ETag, a new one for each mount."""
        key = (image, etag) if etag is not None else None
        if key in self._versions:
            return self._versions[key]
        self._latest = self._latest % (_VERSIONS - 1) + 1  # not 0, which is the key of an empty slot
        if key is not None:
            self._versions[key] = self._latest
        return self._latest

    def check(self, version: int, start: int, data: bytes) -> int | None:
        """Compare blocks with earlier reads; return the offset of the first that differs, or None.

        Args:
            start: offset of the first block, a multiple of ``BLOCK``.
            data: whole blocks; the last of the image may be shorter.
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


class ContentCheck:
    """Compares the content of one response as it arrives, in aligned blocks.

    Args:
        blocks: of earlier reads.
        start: offset of the first byte in the image.
    """

    def __init__(self, blocks: ReadComparer, version: int, start: int, size: int) -> None:
        self._blocks = blocks
        self._version = version
        self._position = start
        self._size = size
        self._rest = b""
        self.differs_at: int | None = None

    def feed(self, data: bytes) -> None:
        """Compare the next bytes."""
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
class MountCheck:
    """Checks that all responses of one mount are of one version.

    Args:
        image: number of the image.
        blocks: of earlier reads, by all clients.
        size: of the image; None until the first response.
        etag: None until the first response, or if the server sends none.
        version: its number; None until the first response.
    """

    image: int
    blocks: ReadComparer = attrs.field(repr=False)
    size: int | None = None
    etag: str | None = None
    version: int | None = None

    def check_head(self, head: ResponseHead) -> VerificationFault | None:
        """Return what is wrong with the head of a response with the whole image."""
        if head.length is None:
            return VerificationFault.LENGTH
        return self._check_version(head, head.length)

    def check_range(self, head: ResponseHead, start: int, stop: int) -> VerificationFault | None:
        """Return what is wrong with the head of a response with a range."""
        if head.status == OK:
            return VerificationFault.RANGE_IGNORED
        match = _CONTENT_RANGE.fullmatch(head.fields.get("content-range", ""))
        if match is None or (int(match[1]), int(match[2])) != (start, stop - 1):
            return VerificationFault.CONTENT_RANGE
        if head.length != stop - start:
            return VerificationFault.LENGTH
        return self._check_version(head, int(match[3]))

    def check_content(self, start: int) -> ContentCheck:
        """Return the check of a response's content; its head has been checked."""
        assert self.version is not None  # noqa: S101 - for the type
        assert self.size is not None  # noqa: S101 - same
        return ContentCheck(self.blocks, self.version, start, self.size)

    def _check_version(self, head: ResponseHead, size: int) -> VerificationFault | None:
        etag = head.fields.get("etag")
        if self.version is None:
            self.size, self.etag = size, etag
            self.version = self.blocks.version(self.image, etag)
        if size != self.size:
            return VerificationFault.SIZE_CHANGED
        return None if etag == self.etag else VerificationFault.ETAG_CHANGED


def parse_checksum(body: bytes) -> str | None:
    """Return the 64 hexadecimal digits of a line of ``sha256sum``; None if it is something else."""
    found = _CHECKSUM.fullmatch(body)
    return found[1].decode() if found else None


def find_detail(head: ResponseHead, body: bytes) -> str:
    """Return why an error response says that it is one, in one line; empty if it does not say."""
    text = body.decode(errors="replace")
    media_type = head.fields.get("content-type", "").partition(";")[0].strip().lower()
    if media_type.endswith("json"):
        try:
            document = json.loads(text)
            text = str(document.get("detail") or document.get("message") or document.get("reason") or "")
        except (ValueError, AttributeError):
            return ""
    elif media_type != "text/plain":
        return ""
    return " ".join("".join(filter(str.isprintable, text.replace("\n", " "))).split())[:_MAX_DETAIL]
