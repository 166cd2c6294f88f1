"""Signs URLs of S3."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from image_service.common.files.block_cache.source import OriginFailed
from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Failed
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from image_service.common.objects.s3_client import S3Options

EXPIRES_SECONDS = 300


class S3Signer:
    """Returns presigned URLs; safe in several threads. The SDK is imported with the first one."""

    def __init__(self, options: S3Options) -> None:
        self._client = S3Client(options)

    def __call__(self, url: str, version: str | None = None) -> str:
        """Return a URL to get ``s3://bucket/key`` from, which expires; raises OriginFailed."""
        bucket = urlsplit(url).netloc
        location = BucketLocation(bucket, unquote(url.partition(f"{bucket}/")[2]))
        parameters = {} if version is None else {"VersionId": version}
        try:
            return self._client.presign("get_object", location, EXPIRES_SECONDS, **parameters)
        except StoreFailed as error:
            raise OriginFailed(f"cannot be signed: {error.detail}") from None
        except S3Failed as error:
            raise OriginFailed(f"cannot be signed for S3: {error.reason}") from None
