"""Objects in S3, by botocore, the SDK of AWS, which finds and renews the credentials. All calls block."""

from __future__ import annotations

import base64
import hashlib
import threading
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.objects.s3_causes import describe_sdk_error
from image_service.core.errors import StoreFailed, TransferFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

MAX_EXPIRES_SECONDS = 7 * 24 * 3600
"""Of a URL presigned by SigV4."""

_DEFAULT_REGION = "us-east-1"
_CONNECT_SECONDS = 10


@attrs.frozen(kw_only=True)
class S3Options:
    """How S3 is reached; None: as the SDK finds it in ``AWS_*`` variables and in its files.

    Args:
        region: None: ``us-east-1`` if the SDK finds none.
        path_style: the bucket is in the path of URLs, not in their host; so it is with an `endpoint_url`.
        answer_seconds: time that a request waits for an answer.
    """

    access_key_id: str | None = None
    secret_access_key: str | None = attrs.field(default=None, repr=False)
    session_token: str | None = attrs.field(default=None, repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    path_style: bool = False
    answer_seconds: float = 60
    attempts: int = 5


@attrs.frozen
class BucketLocation:
    """A bucket, and a key or the beginning of keys in it."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @classmethod
    def of(cls, url: str) -> BucketLocation:
        """Return the location of ``s3://BUCKET/KEY``; the key may be empty. The URL is not checked."""
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return cls(bucket, key)


class S3Failed(TransferFailed):
    """A request to S3 failed. The texts have nothing of the SDK's own, which may contain URLs with queries.

    Args:
        reason: code and status of the answer; without an answer the endpoint and the cause.
        error_code: of the answer; "": there was none.
        status: of the answer; 0: there was none.
    """

    def __init__(self, action: str, reason: str, error_code: str = "", status: int = 0) -> None:
        told = f"the store answered {reason}" if status else reason
        super().__init__(f"cannot {action}: {told}")
        self.reason = reason
        self.error_code = error_code
        self.status = status


class S3Client:
    """A client of S3; may be used in several threads. It imports the SDK when it is first used.

    Each method raises S3Failed, and StoreFailed if botocore is not installed or refuses the options.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._sdk: Any = None
        self._is_aborted = threading.Event()

    def connect(self) -> Any:  # noqa: ANN401 - botocore has no types
        """Return the SDK's client, which has connected to nothing before its first request."""
        with self._lock:
            if self._sdk is None:
                self._sdk = _make_sdk_client(self._options)
                self._sdk.meta.events.register("before-send.s3", self._check_aborted)
            return self._sdk

    def abort(self) -> None:
        """Let further requests fail; one that waits for its answer does so when that time is up."""
        self._is_aborted.set()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._sdk is not None:
                self._sdk.close()

    def put(
        self, location: BucketLocation, body: bytes, content_type: str = "application/octet-stream"
    ) -> None:
        """Store an object."""
        with self._calling(f"upload {location}") as sdk:
            sdk.put_object(
                **_names(location), Body=body, ContentMD5=_content_md5(body), ContentType=content_type
            )

    def read_at(self, location: BucketLocation, offset: int, length: int) -> bytes:
        """Return bytes of an object, at least one; fewer than `length` at its end."""
        with self._calling(f"read {location}") as sdk:
            answer = sdk.get_object(**_names(location), Range=f"bytes={offset}-{offset + length - 1}")
            content: bytes = answer["Body"].read()
        return content

    def delete(self, location: BucketLocation) -> None:
        """Delete an object, if it exists."""
        try:
            with self._calling(f"delete {location}") as sdk:
                sdk.delete_object(**_names(location))
        except S3Failed as error:
            if error.error_code != "NoSuchKey":
                raise

    def exists(self, location: BucketLocation) -> bool:
        """Return True if there is an object."""
        try:
            with self._calling(f"look for {location}") as sdk:
                sdk.head_object(**_names(location))
        except S3Failed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def presign(self, operation: str, location: BucketLocation, seconds: int, **parameters: str) -> str:
        """Return a URL that anyone may use for a while.

        Args:
            operation: of botocore: get_object, head_object or delete_object.
            seconds: at most MAX_EXPIRES_SECONDS; credentials may expire earlier.
            parameters: of the operation, beside bucket and key.
        """
        with self._calling(f"sign a URL of {location}") as sdk:
            url: str = sdk.generate_presigned_url(operation, {**_names(location), **parameters}, seconds)
        return url

    def url_of(self, location: BucketLocation) -> str:
        """Return the URL of an object, without credentials."""
        return self.presign("get_object", location, 1).partition("?")[0]

    def begin_upload(
        self,
        location: BucketLocation,
        content_type: str = "application/octet-stream",
        *,
        public: bool = False,
    ) -> str:
        """Begin an upload of one object in parts, which everybody may read if `public`; return its id."""
        access = {"ACL": "public-read"} if public else {}
        with self._calling(f"upload {location}") as sdk:
            begun = sdk.create_multipart_upload(**_names(location), ContentType=content_type, **access)
        return str(begun["UploadId"])

    def put_part(self, location: BucketLocation, upload: str, number: int, body: bytes) -> str:
        """Store a part, from 1, of an upload; return its ETag."""
        with self._calling(f"upload part {number} of {location}") as sdk:
            answer = sdk.upload_part(
                **_names(location),
                UploadId=upload,
                PartNumber=number,
                Body=body,
                ContentMD5=_content_md5(body),
            )
        return str(answer["ETag"])

    def complete_upload(
        self, location: BucketLocation, upload: str, etags: list[str], *, replace: bool = True
    ) -> None:
        """Make an object of the parts; if it exists and is not to be replaced, S3Failed."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        condition = {} if replace else {"IfNoneMatch": "*"}
        with self._calling(f"complete {location}") as sdk:
            sdk.complete_multipart_upload(
                **_names(location), UploadId=upload, MultipartUpload={"Parts": parts}, **condition
            )

    def abort_upload(self, location: BucketLocation, upload: str) -> None:
        """Delete the parts of an upload."""
        with self._calling(f"abort the upload of {location}") as sdk:
            sdk.abort_multipart_upload(**_names(location), UploadId=upload)

    def list_uploads(self, prefix: BucketLocation) -> list[tuple[BucketLocation, str, datetime]]:
        """Return the uploads in parts that are not complete: their locations, ids and begins."""
        with self._calling(f"list uploads below {prefix}") as sdk:
            pages = sdk.get_paginator("list_multipart_uploads").paginate(
                Bucket=prefix.bucket, Prefix=prefix.key
            )
            return [
                (BucketLocation(prefix.bucket, upload["Key"]), upload["UploadId"], upload["Initiated"])
                for page in pages
                for upload in page.get("Uploads", ())
            ]

    def _check_aborted(self, **_: object) -> None:
        if self._is_aborted.is_set():
            raise S3Failed("send a request", "the transfer was aborted")

    @contextmanager
    def _calling(self, action: str) -> Iterator[Any]:
        sdk = self.connect()
        from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra, and slow to import

        try:
            yield sdk
        except S3Failed:
            raise
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "no code"))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise S3Failed(action, f"{code} (status {status})", code, status) from None
        except Exception as error:  # noqa: BLE001 - the SDK raises many types; its texts may contain secrets
            raise S3Failed(action, describe_sdk_error(error, sdk.meta.endpoint_url)) from None


def _make_sdk_client(options: S3Options) -> Any:  # noqa: ANN401 - botocore has no types
    try:
        # Imported here because it is an extra, and slow to import.
        from botocore.config import Config  # noqa: PLC0415 - same
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - same
        from botocore.session import Session  # noqa: PLC0415 - same
    except ImportError:
        raise StoreFailed("S3 needs the extra s3 of image-service, which is not installed") from None
    try:
        session = Session(profile=options.profile)
        if options.access_key_id and options.secret_access_key:
            session.set_credentials(options.access_key_id, options.secret_access_key, options.session_token)
        bundle = session.get_config_variable("ca_bundle")
        return session.create_client(
            "s3",
            region_name=options.region or session.get_config_variable("region") or _DEFAULT_REGION,
            endpoint_url=options.endpoint_url,
            config=Config(
                signature_version="s3v4",  # else URLs for an endpoint of one's own are signed by SigV2
                # Other stores than AWS seldom have a host name for each bucket.
                s3={"addressing_style": "path"} if options.endpoint_url or options.path_style else {},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"mode": "standard", "total_max_attempts": options.attempts},
                # Else a proxy's certificate is verified by other rules, from Python 3.13 on.
                proxies_config={"proxy_ca_bundle": bundle} if bundle else None,
                connect_timeout=min(_CONNECT_SECONDS, options.answer_seconds),
                read_timeout=options.answer_seconds,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise StoreFailed(f"the settings of S3 are invalid: {describe_sdk_error(error)}") from None


def _names(location: BucketLocation) -> dict[str, str]:
    return {"Bucket": location.bucket, "Key": location.key}


def _content_md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
