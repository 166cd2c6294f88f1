"""Objects in a bucket, by botocore: AWS's SDK finds endpoint, region and credentials (AWS_* variables)."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs

from image_service.common.transfer.origins import public_url
from image_service.core.errors import TransferFailed
from image_service.toolkit.transfer.parallel import THREADS
from image_service.toolkit.workspace.dependencies import BOTOCORE, require

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EXPIRES_SECONDS = 7 * 24 * 3600
"""Of a URL presigned by SigV4."""

_URL = re.compile("s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([ -~]*))?")
_DEFAULT_REGION = "us-east-1"
_ATTEMPTS = 5
_CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""For which a request waits for an answer."""


@attrs.frozen
class BucketLocation:
    """A bucket, and a key or the beginning of keys in it."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def parse_s3_url(text: str) -> BucketLocation:
    """Return the location of ``s3://BUCKET/KEY``; ValueError if it is none."""
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text} is no s3://BUCKET/KEY; a bucket has 3 to 63 lower-case letters, digits, dots and hyphens"
        )
    return BucketLocation(match[1], match[2] or "")


class ObjectStore:
    """A bucket; may be used in several threads.

    Args:
        bucket: its name.
        answer_seconds: for which a request waits for an answer.
        attempts: of each request.

    Raises:
        MissingDependency: botocore is not installed.
        TransferFailed: the AWS_* variables are invalid.
    """

    def __init__(
        self, bucket: str, answer_seconds: float = ANSWER_SECONDS, attempts: int = _ATTEMPTS
    ) -> None:
        require((BOTOCORE,))
        # Imported here because it is an extra, and slow to import.
        from botocore.config import Config  # noqa: PLC0415 - same
        from botocore.session import Session  # noqa: PLC0415 - same

        self._bucket = bucket
        self._aborted = threading.Event()
        with _translate_errors("find the object store"):
            session = Session()
            self._client: Any = session.create_client(
                "s3",
                region_name=session.get_config_variable("region") or _DEFAULT_REGION,
                config=Config(
                    signature_version="s3v4",  # else URLs for an endpoint of one's own are signed by SigV2
                    s3={"addressing_style": "path"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    connect_timeout=min(_CONNECT_SECONDS, answer_seconds),
                    read_timeout=answer_seconds,
                    max_pool_connections=THREADS,
                ),
            )
        self._client.meta.events.register("before-send.s3", self._check_aborted)

    def abort(self) -> None:
        """Let further requests fail; one that waits for its answer does so when that time is up."""
        self._aborted.set()

    def _check_aborted(self, **_: object) -> None:
        if self._aborted.is_set():
            raise TransferFailed("the transfer was aborted")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def put(self, key: str, body: bytes, content_type: str = "application/octet-stream") -> None:
        """Store an object."""
        with _translate_errors(f"upload {self.name_of(key)}"):
            self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=body,
                ContentMD5=_content_md5(body),
                ContentType=content_type,
            )

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        with _translate_errors(f"delete {self.name_of(key)}"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def exists(self, key: str) -> bool:
        """Return True if there is an object."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - as above

        with _translate_errors(f"look for {self.name_of(key)}"):
            try:
                self._client.head_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if _status_of(error) == HTTPStatus.NOT_FOUND:
                    return False
                raise
        return True

    def presign(self, operation: str, key: str, seconds: int) -> str:
        """Return a URL that anyone may use for a while.

        Args:
            operation: of botocore: get_object, head_object or delete_object.
            key: of the object.
            seconds: at most MAX_EXPIRES_SECONDS.
        """
        with _translate_errors(f"sign a URL of {self.name_of(key)}"):
            url: str = self._client.generate_presigned_url(
                operation, {"Bucket": self._bucket, "Key": key}, seconds
            )
        return url

    def url_of(self, key: str) -> str:
        """Return the URL of an object, without credentials."""
        return public_url(self.presign("get_object", key, 1))

    def name_of(self, key: str) -> str:
        """Return the ``s3://`` URL of a key."""
        return str(BucketLocation(self._bucket, key))

    def begin_upload(self, key: str, content_type: str, *, public: bool) -> str:
        """Begin an upload of one object in parts; return its id.

        Args:
            key: of the object.
            content_type: of the object.
            public: everybody may read it.
        """
        access = {"ACL": "public-read"} if public else {}
        with _translate_errors(f"upload {self.name_of(key)}"):
            begun = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, ContentType=content_type, **access
            )
        return str(begun["UploadId"])

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Store a part, from 1, of an upload; return its ETag."""
        with _translate_errors(f"upload part {number} of {self.name_of(key)}"):
            answer = self._client.upload_part(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=body,
                ContentMD5=_content_md5(body),
            )
        return str(answer["ETag"])

    def complete_upload(self, key: str, upload: str, etags: list[str], *, replace: bool) -> None:
        """Make an object of the parts; if it exists and is not to be replaced, TransferFailed."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        condition = {} if replace else {"IfNoneMatch": "*"}
        with _translate_errors(f"complete {self.name_of(key)}"):
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
            )

    def abort_upload(self, key: str, upload: str) -> None:
        """Delete the parts of an upload."""
        with _translate_errors(f"abort the upload of {self.name_of(key)}"):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)


def _content_md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _status_of(error: Any) -> int:  # noqa: ANN401 - botocore has no types
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    """Raise TransferFailed; the SDK's own texts may contain URLs with queries."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415 - as above

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "no code")
        raise TransferFailed(
            f"cannot {unquote(action)}: the store answered {code} (status {_status_of(error)})"
        ) from None
    except NoCredentialsError:
        raise TransferFailed(
            f"cannot {action}: no credentials; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise TransferFailed(f"cannot {action}: {type(error).__name__}") from None
