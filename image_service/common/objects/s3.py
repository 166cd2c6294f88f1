"""Objects in a bucket of S3."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from datetime import UTC
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Failed
from image_service.common.objects.store import StoredObject, check_key
from image_service.core.errors import NotFound, StoreDenied, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from image_service.common.objects.s3_client import S3Options

PART_BYTES = 16 * 1024 * 1024
"""Of an upload of unknown size, in at most `_MAX_PARTS`; one is in memory."""
LEAST_PART_BYTES = 5 * 1024 * 1024
"""That S3 takes."""
_MAX_PARTS = 10_000
_FULL = {"QuotaExceeded", "ServiceQuotaExceededException", "XMinioStorageFull", "InsufficientCapacity"}
_DENIED = {
    *("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "XAdminUserNotFound"),
}
"""Which other credentials or settings mend, not time; clocks that differ and expired tokens pass."""


class S3Store:
    """A store in a bucket. See ``ObjectStorage``. May be used in several threads.

    Args:
        prefix: the bucket, and the prefix of all keys, which ends with ``/`` or is empty.
    """

    def __init__(self, prefix: BucketLocation, options: S3Options) -> None:
        self._prefix = prefix
        self._client = S3Client(options)

    def begin(self, key: str, size: int | None = None) -> S3Writer:
        """Begin an upload; all parts but the last have one size, which some servers require."""
        part_bytes = PART_BYTES if size is None else max(LEAST_PART_BYTES, -(-size // _MAX_PARTS))
        return S3Writer(key, self._location_of(key), self._client, part_bytes)

    def link_file(self, key: str, path: Path, sha256: str) -> None:
        """Return None: the bytes of each object have to be uploaded."""

    def read_at(self, key: str, offset: int, length: int) -> bytes:
        """Get a range of the object."""
        location = self._location_of(key)
        with _reworded("read an object"):
            try:
                return self._client.read_at(location, offset, max(length, 1))[:length]
            except S3Failed as error:
                if error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return b""
                if error.error_code == "NoSuchKey":
                    raise NotFound(f"the store has no object {key}") from None
                raise

    def delete(self, key: str) -> None:
        """Delete the object."""
        location = self._location_of(key)
        with _reworded("delete an object"):
            self._client.delete(location)

    def remove_unfinished(self, before: datetime) -> None:
        """Abort uploads in parts that have begun before that time."""
        with _reworded("list uploads"):
            for location, upload, begun in self._client.list_uploads(self._prefix):
                if begun.astimezone(UTC) < before:
                    self._client.abort_upload(location, upload)

    def _location_of(self, key: str) -> BucketLocation:
        return BucketLocation(self._prefix.bucket, f"{self._prefix.key}{check_key(key)}")


@attrs.define(eq=False)
class S3Writer:
    """An upload, in parts if it has more than one. See ``ObjectWriter``."""

    _key: str
    _location: BucketLocation
    _client: S3Client
    _part_bytes: int
    _part: bytearray = attrs.field(factory=bytearray)
    _upload: str | None = None
    _etags: list[str] = attrs.field(factory=list)
    _size: int = 0
    _digest: Any = attrs.field(factory=hashlib.sha256)  # hashlib names no type of its own

    def write(self, chunk: bytes, /) -> None:
        """Upload a part once it is full."""
        self._digest.update(chunk)
        self._size += len(chunk)
        self._part += chunk
        while len(self._part) >= self._part_bytes:
            self._put_part()

    def complete(self) -> StoredObject:
        """Upload the rest."""
        with _reworded("put an object"):
            if self._upload is None:
                self._client.put(self._location, bytes(self._part))
            else:
                if self._part:
                    self._put_part()
                self._client.complete_upload(self._location, self._upload, self._etags)
        return StoredObject(self._key, self._size, self._digest.hexdigest(), self._size)

    def abort(self) -> None:
        """Abort the upload in parts."""
        if self._upload is not None:
            with suppress(Exception):  # the one that was raised is the cause
                self._client.abort_upload(self._location, self._upload)

    def _put_part(self) -> None:
        with _reworded("put an object"):
            if self._upload is None:
                self._upload = self._client.begin_upload(self._location)
            with memoryview(self._part) as whole:
                part = bytes(whole[: self._part_bytes])
            etag = self._client.put_part(self._location, self._upload, len(self._etags) + 1, part)
        self._etags.append(etag)
        del self._part[: len(part)]


@contextmanager
def _reworded(action: str) -> Iterator[None]:
    """Raise StoreFailed, StoreFull or StoreDenied in the place of S3Failed."""
    try:
        yield
    except S3Failed as error:
        is_full = error.error_code in _FULL or error.status == HTTPStatus.INSUFFICIENT_STORAGE
        kind = StoreFull if is_full else StoreDenied if error.error_code in _DENIED else StoreFailed
        raise kind(f"the object store in S3: cannot {action}: {error.reason}") from None
