"""One remote file at its origin: where redirects lead, which version is there, and ranges of it, checked.

Redirects are resolved once and kept; a link that has expired (401, 403) is resolved again at once, and one
that has failed otherwise at the next attempt. Header fields and query parameters of the configuration are
credentials, and go to the origin of the configured URL only; a URL of S3 is signed for each request, and its
redirects are not followed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from image_service.common.files.block_cache.source import OriginChanged, OriginFailed
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError
from image_service.common.http.origins import public_url
from image_service.common.http.redirects import REDIRECTS
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import BaseImageError
from image_service.server.catalog.download.origin_client import IDENTITY, describe_coding, describe_failure
from image_service.server.catalog.storage.base_records import Pin
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.response import HttpResponse
    from image_service.server.catalog.download.origin_client import OriginClient

STALL_SECONDS = 10.0
"""A response is given up if it brings less than `_STALL_BYTES` in this time, and is not complete."""
_STALL_BYTES = 64 * 1024
MAX_IDLE = 16  # connections per origin
_EXPIRED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
MAX_RETRY_AFTER = 300  # seconds
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]+"')


class SignUrl(Protocol):
    """Returns the URL to get an object of S3 from; valid for some minutes."""

    def __call__(self, url: str, version: str | None) -> str:
        """Sign a request for `url` (``s3://bucket/key``), and for a version of it where one is given.

        Raises:
            OriginFailed: there are no credentials, or the SDK is not installed.
        """


class RangeOrigin(Protocol):
    """Where a remote file is."""

    def find_version(self) -> Pin:
        """Return the version that is there now; raises BaseImageError, OriginFailed."""

    def fetch(self, pin: Pin, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a version; raises OriginChanged, OriginFailed."""


class Origin:
    """A URL that is read by ranges, in threads.

    Args:
        url: ``http``, ``https`` or ``s3``.
        client: sends the requests.
        downloads: has the credentials of the configuration, and their origins.
        sign: signs URLs of S3.
    """

    def __init__(self, url: str, client: HttpClient, downloads: OriginClient, sign: SignUrl) -> None:
        self.url = url
        self._client = client
        self._downloads = downloads
        self._sign = sign
        self._resolved: str | None = None

    def find_version(self) -> Pin:
        """Ask for one byte, and return what version the origin has now.

        Raises:
            BaseImageError: the origin does not serve ranges.
            OriginFailed: no answer, or one that cannot be used.
        """
        with self._send({"Range": "bytes=0-0"}, None) as response:
            if response.status == HTTPStatus.OK:
                raise BaseImageError("its origin does not serve ranges: it answered with status 200 to one")
            size = _check_part(response, 0, 1)
            etag = response.field("ETag")
            version = response.field("x-amz-version-id") if self._is_s3 else ""
            response.read(1)
        return Pin(
            etag if _STRONG_ETAG.fullmatch(etag) else None, size, None if version in {"", "null"} else version
        )

    def fetch(self, pin: Pin, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a version, from `offset` on.

        Args:
            pin: without an ETag, only the size is compared: the caller has digests.
            offset: of the first byte.
            target: its length is that of the range.

        Raises:
            OriginChanged: the origin has another version.
            OriginFailed: these bytes cannot be fetched now; says why.
        """
        fields = {"Range": f"bytes={offset}-{offset + len(target) - 1}"}
        if pin.etag is not None:
            fields["If-Match"] = pin.etag
        with self._send(fields, pin.version) as response:
            if response.status in {
                HTTPStatus.PRECONDITION_FAILED,
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            }:
                raise OriginChanged(f"it has another version: it answered with status {response.status}")
            if response.status == HTTPStatus.OK:
                raise OriginFailed("it answered with status 200 to a range")
            size = _check_part(response, offset, len(target))
            if size != pin.size:
                raise OriginChanged(f"it has another version, of {size} bytes instead of {pin.size}")
            etag = response.field("ETag")
            if pin.etag is not None and not etag:
                raise OriginFailed("it answered without an ETag")
            if pin.etag not in {None, etag}:
                raise OriginChanged("it has another version: it answered with another ETag")
            response.read_into(target)
            if not response.is_at_end():
                raise OriginFailed(f"it sent more than the {len(target)} bytes of the range")

    def read_all(self, max_bytes: int) -> bytes:
        """Return the content of a small file, whole.

        Raises:
            BaseImageError: it is longer than `max_bytes`.
            OriginFailed: it cannot be fetched.
        """
        with self._send({}, None) as response:
            _check_coding(response)
            if response.status != HTTPStatus.OK:
                raise _status_error(response)
            content = response.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise BaseImageError(f"{public_url(self.url)} has more than {max_bytes} bytes")
        return content

    @property
    def _is_s3(self) -> bool:
        return urlsplit(self.url).scheme == "s3"

    @contextmanager
    def _send(self, fields: Mapping[str, str], version: str | None) -> Iterator[HttpResponse]:
        """Yield the response of where the URL leads; translate the errors of connections."""
        try:
            with self._follow(fields, version) as response:
                yield response
        except OriginFailed:
            self._resolved = None
            raise
        except HttpError as error:
            self._resolved = None
            raise OriginFailed(describe_failure(error)) from None

    @contextmanager
    def _follow(self, fields: Mapping[str, str], version: str | None) -> Iterator[HttpResponse]:
        if self._is_s3:
            with self._client.send("GET", self._sign(self.url, version), {**IDENTITY, **fields}) as response:
                yield response
            return
        redirects = self._downloads.redirects(self.url)
        fields = {**IDENTITY, **fields}
        if (resolved := self._resolved) is not None:
            with self._client.send("GET", resolved, {**fields, **redirects.fields_for(resolved)}) as response:
                if response.status not in {*REDIRECTS, *_EXPIRED}:
                    yield response
                    return
        while True:
            url = redirects.url
            with self._client.send("GET", url, {**fields, **redirects.fields_for(url)}) as response:
                if response.status not in REDIRECTS:
                    self._resolved = url
                    yield response
                    return
            redirects.follow(response)


def range_limits(stall_seconds: float = STALL_SECONDS) -> RequestLimits:
    """Return what bounds the request of a range."""
    return RequestLimits(
        stall_seconds=stall_seconds,
        stall_bytes=_STALL_BYTES,
        slow=f"stalled: less than {_STALL_BYTES // 1024} KiB in {stall_seconds:g} s",
    )


def build_range_client(
    downloads: OriginClient, interruption: Interruption, stall_seconds: float = STALL_SECONDS
) -> HttpClient:
    """Return a client that keeps connections; the interruption shuts them down."""
    return HttpClient(
        downloads.trust.get,
        range_limits(stall_seconds),
        find_proxy=downloads.proxies.find,
        interruption=interruption,
        max_idle=MAX_IDLE,
    )


def _check_coding(response: HttpResponse) -> None:
    if response.coding:
        raise OriginFailed(f"it {describe_coding(response)}")


def _check_part(response: HttpResponse, offset: int, length: int) -> int:
    """Check the head of an answer to a range; return the size of the whole."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        raise _status_error(response)
    _check_coding(response)
    content_range = response.field("Content-Range")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None or (int(match[1]), int(match[2])) != (offset, offset + length - 1):
        raise OriginFailed(
            f"it answered with Content-Range {content_range!r:.60} to bytes {offset}-{offset + length - 1}"
        )
    if response.length not in {None, length}:
        raise OriginFailed(f"it announced {response.length} bytes for a range of {length}")
    return int(match[3])


def _status_error(response: HttpResponse) -> OriginFailed:
    detail = f"it answered with status {response.status}"
    asked = parse_retry_after(response.field("Retry-After"))
    return (
        OriginFailed(detail)
        if asked is None
        else OriginFailed(detail, retry_after_seconds=max(1, min(asked, MAX_RETRY_AFTER)))
    )
