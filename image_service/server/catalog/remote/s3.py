"""Signs URLs of S3 with botocore, the SDK of AWS, which finds the credentials and renews them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from image_service.common.files.block_cache.source import OriginFailed
from image_service.common.objects.s3_client import make_s3_client
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from image_service.settings.remote import S3Settings

EXPIRES_SECONDS = 300


class S3Signer:
    """Returns presigned URLs; safe in several threads. The SDK is imported with the first one."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def __call__(self, url: str, version: str | None = None) -> str:
        """Return a URL to get ``s3://bucket/key`` from, which expires; raises OriginFailed."""
        split = urlsplit(url)
        key = unquote(url.partition(split.netloc + "/")[2])
        parameters = {"Bucket": split.netloc, "Key": key}
        if version is not None:
            parameters["VersionId"] = version
        try:
            client = self._get_client()
            signed: str = client.generate_presigned_url("get_object", parameters, EXPIRES_SECONDS)
        except StoreFailed as error:
            raise OriginFailed(f"cannot be signed: {error.detail}") from None
        except Exception as error:  # noqa: BLE001 - the SDK raises of everything; its texts may hold anything
            raise OriginFailed(f"cannot be signed for S3: {type(error).__name__}") from None
        return signed

    def _get_client(self) -> Any:  # noqa: ANN401 - botocore has no types
        with self._lock:
            if self._client is None:
                self._client = make_s3_client(self._settings)
            return self._client
