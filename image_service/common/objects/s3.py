"""Objects in a bucket of S3."""

from __future__ import annotations

import base64
import hashlib
import threading
from contextlib import contextmanager, suppress
from datetime import UTC
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from image_service.common.objects.s3_client import make_s3_client
from image_service.common.objects.store import StoredObject, check_key
from image_service.core.errors import NotFound, StoreFailed, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from image_service.common.objects.store import ReadableContent
    from image_service.settings.remote import S3Settings

PART_BYTES = 16 * 1024 * 1024
"""Of an upload in parts, of which there are 10,000 at most; one is in memory."""
_FULL = {"QuotaExceeded", "ServiceQuotaExceededException", "XMinioStorageFull", "InsufficientCapacity"}


class S3Store:
    """A store in a bucket. See ``ObjectStorage``. May be used in several threads.

    Args:
        bucket: its name.
        prefix: of all keys; "": none.
        settings: endpoint, region and credentials.
    """

    def __init__(self, bucket: str, prefix: str, settings: S3Settings) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def put(self, key: str, content: ReadableContent) -> StoredObject:
        """Upload the content, in parts if it has more than one."""
        names = self._names(key)
        first = _read_part(content)
        with _translated("put an object"):
            client = self._get_client()
            if len(first) < PART_BYTES:
                client.put_object(**names, Body=first, ContentMD5=_content_md5(first))
                return StoredObject(key, len(first), hashlib.sha256(first).hexdigest())
            upload = {**names, "UploadId": client.create_multipart_upload(**names)["UploadId"]}
            try:
                return self._put_parts(key, upload, first, content)
            except BaseException:
                with suppress(Exception):  # the one that is raised is the cause
                    client.abort_multipart_upload(**upload)
                raise

    def read_at(self, key: str, offset: int, length: int) -> bytes:
        """Get a range of the object."""
        byte_range = f"bytes={offset}-{offset + max(length, 1) - 1}"
        try:
            with _translated("read an object"):
                answer = self._get_client().get_object(**self._names(key), Range=byte_range)
                content: bytes = answer["Body"].read()
        except _PastEnd:
            return b""
        except NotFound:
            raise NotFound(f"the store has no object {key}") from None
        return content[:length]

    def delete(self, key: str) -> None:
        """Delete the object."""
        with _translated("delete an object"), suppress(NotFound):
            self._get_client().delete_object(**self._names(key))

    def remove_unfinished(self, before: datetime) -> None:
        """Abort uploads in parts that have begun before that time."""
        with _translated("list uploads"):
            client = self._get_client()
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].astimezone(UTC) < before:
                        client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def _put_parts(
        self, key: str, upload: dict[str, str], first: bytes, content: ReadableContent
    ) -> StoredObject:
        parts: list[dict[str, object]] = []
        size, digest, part = 0, hashlib.sha256(), first
        while part:
            digest.update(part)
            size += len(part)
            number = len(parts) + 1
            answer = self._client.upload_part(
                **upload, PartNumber=number, Body=part, ContentMD5=_content_md5(part)
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            part = _read_part(content)
        self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        return StoredObject(key, size, digest.hexdigest())

    def _names(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{check_key(key)}"}

    def _get_client(self) -> Any:  # noqa: ANN401 - botocore has no types
        with self._lock:
            if self._client is None:
                self._client = make_s3_client(self._settings)
            return self._client


class _PastEnd(Exception):
    """A range begins after the end of the object."""


def _read_part(content: ReadableContent) -> bytes:
    """Return `PART_BYTES`; fewer at the end."""
    part = bytearray()
    while len(part) < PART_BYTES and (chunk := content.read(PART_BYTES - len(part))):
        part += chunk
    return bytes(part)


def _content_md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Raise an error of ours in the place of the SDK's, whose texts may hold URLs with queries."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, and slow to import

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "no code"))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _PastEnd from None
        if code == "NoSuchKey":
            raise NotFound("the store has no such object") from None
        kind = StoreFull if code in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE else StoreFailed
        raise kind(f"the object store in S3: cannot {action}: {code} (status {status})") from None
    except BotoCoreError as error:
        raise StoreFailed(f"the object store in S3: cannot {action}: {type(error).__name__}") from None
