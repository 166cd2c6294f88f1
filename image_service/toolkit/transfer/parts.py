"""The download of parts of known length: retried, continued by ranges, compared with their ETags."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.common.transfer.client import TransientFailure

if TYPE_CHECKING:
    from hashlib import _Hash

    from image_service.common.transfer.client import ReceivedResponse, TransferClient
    from image_service.common.transfer.manifest import ManifestPart
    from image_service.toolkit.transfer.parallel import TransferMeter

_STRONG_ETAG = re.compile(r'"[!#-~]+"')
_MD5_ETAG = re.compile(r'"([0-9a-fA-F]{32})"')
_ENCRYPTION = (
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
)


@attrs.frozen
class VerifiedPart:
    """What a part was when it was complete.

    Args:
        etag: strong one, with quotes; "": it had none.
        md5: of its bytes, hexadecimal.
    """

    etag: str
    md5: str


@attrs.define
class _PartDownload:
    """The download of one part, in several attempts: each continues the one before, or starts over.

    Args:
        descriptor: of the file.
        meter: counts what has come.
        received: bytes, from the part's beginning.
        etag: of these, if it is a strong one.
        md5: of these.
    """

    client: TransferClient
    part: ManifestPart
    descriptor: int
    meter: TransferMeter
    received: int = 0
    etag: str = ""
    md5: _Hash = attrs.field(factory=lambda: hashlib.md5(usedforsecurity=False))

    def attempt(self) -> VerifiedPart:
        """Send one request, and write what comes."""
        part = self.part
        if self.received == part.length or not self.etag:
            self._start_over()
        headers = {}
        if self.received:
            headers = {"Range": f"bytes={self.received}-{part.length - 1}", "If-Match": self.etag}
        name = f"get-url of part {part.index}"
        with self.client.send("GET", part.get_url, name, headers, part.length) as response:
            if self.received:
                self._check_continued(response)
            else:
                self._check_whole(response)
            self._write_body(response)
            promised = _promised_md5(response)
        if promised not in {None, self.md5.hexdigest()}:
            raise TransientFailure(f"{response.url} has another MD5 than its ETag")
        return VerifiedPart(self.etag, self.md5.hexdigest())

    def _start_over(self) -> None:
        self.meter.add(-self.received)
        self.received, self.etag = 0, ""
        self.md5 = hashlib.md5(usedforsecurity=False)

    def _check_whole(self, response: ReceivedResponse) -> None:
        if response.status != HTTPStatus.OK:
            raise response.failure()
        if response.is_coded:
            raise TransientFailure(f"{response.url} is encoded, which was not asked for")
        if response.length not in {None, self.part.length}:
            raise TransientFailure(
                f"{response.url} has {response.length} bytes, not the {self.part.length} of its part"
            )
        etag = response.field("ETag")
        self.etag = etag if _STRONG_ETAG.fullmatch(etag) else ""

    def _check_continued(self, response: ReceivedResponse) -> None:
        length = self.part.length
        found = (response.status, response.field("Content-Range"), response.field("ETag"))
        wanted = (
            HTTPStatus.PARTIAL_CONTENT,
            f"bytes {self.received}-{length - 1}/{length}",
            self.etag,
        )
        fits = response.length in {None, length - self.received} and not response.is_coded
        if found != wanted or not fits:
            self._start_over()
            raise TransientFailure(f"{response.url} did not continue at the byte that was asked for")

    def _write_body(self, response: ReceivedResponse) -> None:
        length = self.part.length
        for block in response.blocks():
            if self.received + len(block) > length:
                self._start_over()
                raise TransientFailure(f"{response.url} has more than the {length} bytes of its part")
            _write(self.descriptor, block, self.part.offset + self.received)
            self.md5.update(block)
            self.received += len(block)
            self.meter.add(len(block))
        if self.received != length:
            raise TransientFailure(
                f"{response.url} ended after {self.received} of the {length} bytes of its part"
            )


def download_part(
    client: TransferClient, part: ManifestPart, descriptor: int, meter: TransferMeter
) -> VerifiedPart:
    """Write a part at its offset of a file whose other bytes stay; holes stay where it has zeros.

    Raises:
        TransferFailed: it is not to be had, or is not what it must be.
        UnsafeImage: its URL or address is not allowed.
        OSError: it cannot be written.
    """
    return client.retry(_PartDownload(client, part, descriptor, meter).attempt)


def is_unchanged(client: TransferClient, part: ManifestPart, etag: str) -> bool:
    """Return True if the server still has the part that had this ETag."""

    def attempt() -> bool:
        with client.send("HEAD", part.head_url, f"head-url of part {part.index}") as response:
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise response.failure()
            length = response.field("Content-Length")
            return response.status == HTTPStatus.OK and (response.field("ETag"), length) == (
                etag,
                str(part.length),
            )

    return bool(etag) and client.retry(attempt)


def md5_of(descriptor: int, part: ManifestPart) -> str:
    """Return the MD5 of a part's bytes in a file."""
    digest = hashlib.md5(usedforsecurity=False)
    end = part.offset + part.length
    for offset in range(part.offset, end, 1 << 20):
        digest.update(os.pread(descriptor, min(1 << 20, end - offset), offset))
    return digest.hexdigest()


def _promised_md5(response: ReceivedResponse) -> str | None:
    """Return the MD5 that an ETag is; of an encrypted object it is something else."""
    match = _MD5_ETAG.fullmatch(response.field("ETag"))
    return match[1].lower() if match and not any(map(response.field, _ENCRYPTION)) else None


def _write(descriptor: int, block: bytes, offset: int) -> None:
    if not block.strip(b"\0") and _is_hole(descriptor, offset, len(block)):
        return
    view = memoryview(block)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _is_hole(descriptor: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows
            return True
        raise
