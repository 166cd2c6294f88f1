"""URLs for objects in S3 that others download."""

from __future__ import annotations

import threading

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.common.objects.s3_client import (
    MAX_EXPIRES_SECONDS,
    BucketLocation,
    S3Client,
    S3Failed,
    S3Options,
)
from image_service.core.errors import StoreFailed

_MAX_CLIENTS = 16  # one for each region, of which clients name any; each takes some MB


class S3Links:
    """Makes URLs. May be used in several threads; the first call blocks for longer than later ones."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._clients: LruCache[str | None, S3Client] = LruCache(_MAX_CLIENTS)

    def url_of(self, location: str, region: str | None = None, *, is_public: bool = False) -> str:
        """Return the URL of an object.

        Args:
            location: ``s3://BUCKET/KEY``.
            region: of the bucket; None: that of the options.
            is_public: everybody may read it: the URL is not signed. Else it expires after
                `MAX_EXPIRES_SECONDS`, or with the credentials.

        Raises:
            StoreFailed: there are no credentials, or the options are invalid.
        """
        with self._lock:
            client = self._clients.get(region)
            if client is None:
                options = attrs.evolve(self._options, region=region or self._options.region)
                client = self._clients[region] = S3Client(options)
        place = BucketLocation.of(location)
        try:
            if is_public:
                return client.url_of(place)
            return client.presign("get_object", place, MAX_EXPIRES_SECONDS)
        except S3Failed as error:
            raise StoreFailed(f"a URL of S3 cannot be signed: {error.reason}") from None
