"""URLs for objects in S3 that others download."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from image_service.common.concurrency.lru import LruCache
from image_service.common.objects.s3_client import make_s3_client
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from image_service.settings.remote import S3Settings

MAX_EXPIRES_SECONDS = 7 * 24 * 3600
"""Of a URL presigned by SigV4."""

_MAX_CLIENTS = 16  # one for each region, of which clients name any; each takes some MB


def parse_s3_url(url: str) -> tuple[str, str]:
    """Return bucket and key of ``s3://BUCKET/KEY``; the key may be empty."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


class S3Links:
    """Makes URLs. May be used in several threads; the first call blocks for longer than later ones.

    Args:
        settings: endpoint, region and credentials.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: LruCache[str | None, Any] = LruCache(_MAX_CLIENTS)

    def url_of(self, location: str, region: str | None = None, *, is_public: bool = False) -> str:
        """Return the URL of an object.

        Args:
            location: ``s3://BUCKET/KEY``.
            region: of the bucket; None: that of the settings.
            is_public: everybody may read it: the URL is not signed. Else it expires after
                `MAX_EXPIRES_SECONDS`, or with the credentials.

        Raises:
            StoreFailed: there are no credentials, or the settings are invalid.
        """
        bucket, key = parse_s3_url(location)
        try:
            signed: str = self._get_client(region).generate_presigned_url(
                "get_object", {"Bucket": bucket, "Key": key}, MAX_EXPIRES_SECONDS
            )
        except StoreFailed:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises many types; its texts may contain secrets
            raise StoreFailed(f"a URL of S3 cannot be signed: {type(error).__name__}") from None
        return signed.partition("?")[0] if is_public else signed

    def _get_client(self, region: str | None) -> Any:  # noqa: ANN401 - botocore has no types
        with self._lock:
            client = self._clients.get(region)
            if client is None:
                client = self._clients[region] = make_s3_client(self._settings, region)
            return client
