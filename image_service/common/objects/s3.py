"""Objects in a bucket of S3."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from datetime import UTC
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Failed
from image_service.common.objects.store import StoredObject, check_key
from image_service.core.errors import NotFound, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from image_service.common.objects.s3_client import S3Options
    from image_service.common.objects.store import ReadableContent

PART_BYTES = 16 * 1024 * 1024
"""Of an upload in parts, of which there are 10,000 at most; one is in memory."""
_FULL = {"QuotaExceeded", "ServiceQuotaExceededException", "XMinioStorageFull", "InsufficientCapacity"}


class S3Store:
    """A store in a bucket. See ``ObjectStorage``. May be used in several threads.

    Args:
        prefix: the bucket, and the prefix of all keys, which ends with ``/`` or is empty.
    """

    def __init__(self, prefix: BucketLocation, options: S3Options) -> None:
        self._prefix = prefix
        self._client = S3Client(options)

    def put(self, key: str, content: ReadableContent) -> StoredObject:
        """Upload the content, in parts if it has more than one."""
        location = self._location_of(key)
        first = _read_part(content)
        with _reworded("put an object"):
            if len(first) < PART_BYTES:
                self._client.put(location, first)
                return StoredObject(key, len(first), hashlib.sha256(first).hexdigest(), len(first))
            upload = self._client.begin_upload(location)
            try:
                size, digest, etags, part = 0, hashlib.sha256(), list[str](), first
                while part:
                    digest.update(part)
                    size += len(part)
                    etags.append(self._client.put_part(location, upload, len(etags) + 1, part))
                    part = _read_part(content)
                self._client.complete_upload(location, upload, etags)
            except BaseException:
                with suppress(Exception):  # the one that is raised is the cause
                    self._client.abort_upload(location, upload)
                raise
        return StoredObject(key, size, digest.hexdigest(), size)

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


def _read_part(content: ReadableContent) -> bytes:
    """Return `PART_BYTES`; fewer at the end."""
    part = bytearray()
    while len(part) < PART_BYTES and (chunk := content.read(PART_BYTES - len(part))):
        part += chunk
    return bytes(part)


@contextmanager
def _reworded(action: str) -> Iterator[None]:
    """Raise StoreFailed, or StoreFull, in the place of S3Failed."""
    try:
        yield
    except S3Failed as error:
        is_full = error.error_code in _FULL or error.status == HTTPStatus.INSUFFICIENT_STORAGE
        kind = StoreFull if is_full else StoreFailed
        raise kind(f"the object store in S3: cannot {action}: {error.reason}") from None
