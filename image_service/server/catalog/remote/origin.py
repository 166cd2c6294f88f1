"""One remote file at its origin: where redirects lead, which version is there, and ranges of it, checked.

Redirects are resolved once and kept; a link that has expired (401, 403) is resolved again at once, and one
that has failed otherwise at the next attempt. Header fields and query parameters of the configuration are
credentials, and go to the origin of the configured URL only; a URL of S3 is signed for each request, and its
redirects are not followed.
"""

from __future__ import annotations

import http.client
import re
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urljoin, urlsplit

import attrs

from image_service.common.files.block_cache.source import OriginChanged, OriginFailed
from image_service.core.errors import BaseImageError
from image_service.server.catalog.download.fetch_guard import (
    InvalidResponse,
    describe_fault,
    origin_of,
    public_url,
)
from image_service.server.catalog.download.urllib_handlers import MAX_REDIRECTS
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.catalog.remote.range_client import RangeClient

_REDIRECTS = {301, 302, 303, 307, 308}
_EXPIRED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_MAX_RETRY_AFTER = 300  # seconds
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]+"')


class SignUrl(Protocol):
    """Returns the URL to get an object of S3 from; valid for some minutes."""

    def __call__(self, url: str, version: str | None) -> str:
        """Sign a request for `url` (``s3://bucket/key``), and for a version of it where one is given.

        Raises:
            OriginFailed: there are no credentials, or the SDK is not installed.
        """


@attrs.frozen
class Pin:
    """The version of a file that an origin has.

    Args:
        etag: with its quotes; None: the origin gives no strong one.
        size: bytes.
        version: of the object, in a bucket that keeps versions; such a version stays when it is replaced.
    """

    etag: str | None
    size: int
    version: str | None = None


class Origin:
    """A URL that is read by ranges, in threads.

    Args:
        url: ``http``, ``https`` or ``s3``.
        client: sends the requests.
        downloads: has the credentials of the configuration, and their origins.
        sign: signs URLs of S3.
    """

    def __init__(self, url: str, client: RangeClient, downloads: OriginClient, sign: SignUrl) -> None:
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
            etag = response.headers.get("ETag", "")
            version = response.headers.get("x-amz-version-id") if self._is_s3 else None
            response.read()
        return Pin(
            etag if _STRONG_ETAG.fullmatch(etag) else None, size, None if version == "null" else version
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
            etag = response.headers.get("ETag")
            if pin.etag is not None and etag is None:
                raise OriginFailed("it answered without an ETag")
            if pin.etag not in {None, etag}:
                raise OriginChanged("it has another version: it answered with another ETag")
            _read_into(response, target)

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
            if response.length:
                response.close()
        if len(content) > max_bytes:
            raise BaseImageError(f"{public_url(self.url)} has more than {max_bytes} bytes")
        return content

    @property
    def _is_s3(self) -> bool:
        return urlsplit(self.url).scheme == "s3"

    @contextmanager
    def _send(self, fields: Mapping[str, str], version: str | None) -> Iterator[http.client.HTTPResponse]:
        """Yield the response of where the URL leads; translate the errors of connections."""
        try:
            with self._follow(fields, version) as response:
                yield response
        except OriginFailed:
            self._resolved = None
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._resolved = None
            raise OriginFailed(describe_fault(error)) from None

    @contextmanager
    def _follow(self, fields: Mapping[str, str], version: str | None) -> Iterator[http.client.HTTPResponse]:
        if self._is_s3:
            with self._client.get(self._sign(self.url, version), _identity(fields)) as response:
                yield response
            return
        if (resolved := self._resolved) is not None:
            with self._client.get(resolved, self._with_credentials(resolved, fields)) as response:
                if response.status not in {*_REDIRECTS, *_EXPIRED}:
                    yield response
                    return
        url = self._with_parameters(self.url)
        for _ in range(MAX_REDIRECTS + 1):
            with self._client.get(url, self._with_credentials(url, fields)) as response:
                if response.status not in _REDIRECTS:
                    self._resolved = url
                    yield response
                    return
                url = self._next_url(url, response.headers.get("Location", ""))
        raise InvalidResponse(f"more than {MAX_REDIRECTS} redirects, the last one to {public_url(url)}")

    def _next_url(self, url: str, location: str) -> str:
        found = urljoin(url, location)
        schemes = (urlsplit(url).scheme, urlsplit(found).scheme)
        if not location or schemes not in {("http", "http"), ("http", "https"), ("https", "https")}:
            raise InvalidResponse(f"redirects from {schemes[0]} to {schemes[1]}, to {public_url(found)}")
        return found if self._gets_credentials(found) else self._without_parameters(found)

    def _gets_credentials(self, url: str) -> bool:
        origin = origin_of(self.url)
        return origin_of(url) == origin and origin in self._downloads.credential_origins

    def _with_credentials(self, url: str, fields: Mapping[str, str]) -> dict[str, str]:
        secret = self._downloads.headers if self._gets_credentials(url) else {}
        return {**_identity(fields), **secret}

    def _with_parameters(self, url: str) -> str:
        query = urlencode(self._downloads.parameters) if self._gets_credentials(url) else ""
        return f"{url}{'&' if urlsplit(url).query else '?'}{query}" if query else url

    def _without_parameters(self, url: str) -> str:
        """Remove what a Location may repeat."""
        split, ours = urlsplit(url), urlencode(self._downloads.parameters).split("&")
        return split._replace(
            query="&".join(part for part in split.query.split("&") if part not in ours)
        ).geturl()


def _identity(fields: Mapping[str, str]) -> dict[str, str]:
    return {"User-Agent": "image-service", "Accept-Encoding": "identity", **fields}


def _check_coding(response: http.client.HTTPResponse) -> None:
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        raise OriginFailed(f"it answered with content coding {coding!r:.20}; must be uncoded")


def _check_part(response: http.client.HTTPResponse, offset: int, length: int) -> int:
    """Check the head of an answer to a range; return the size of the whole."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        raise _status_error(response)
    _check_coding(response)
    content_range = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None or (int(match[1]), int(match[2])) != (offset, offset + length - 1):
        raise OriginFailed(
            f"it answered with Content-Range {content_range!r:.60} to bytes {offset}-{offset + length - 1}"
        )
    if response.length not in {None, length}:
        raise OriginFailed(f"it announced {response.length} bytes for a range of {length}")
    return int(match[3])


def _read_into(response: http.client.HTTPResponse, target: memoryview) -> None:
    done = 0
    while done < len(target):
        count = response.readinto(target[done:])
        if not count:
            raise OriginFailed(f"it sent {done} of {len(target)} bytes")
        done += count
    if not response.isclosed() and response.read(1):
        raise OriginFailed(f"it sent more than the {len(target)} bytes of the range")


def _status_error(response: http.client.HTTPResponse) -> OriginFailed:
    detail = f"it answered with status {response.status}"
    asked = parse_retry_after(response.headers.get("Retry-After", ""))
    return (
        OriginFailed(detail)
        if asked is None
        else OriginFailed(detail, retry_after_seconds=max(1, min(asked, _MAX_RETRY_AFTER)))
    )
