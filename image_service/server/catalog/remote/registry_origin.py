"""A file in an OCI registry that stays there: a layer, read by ranges; its digest is the validator.

The tag is resolved at each look for the version. What was pinned stays readable by its digest for as long as
the registry keeps it, whatever its tag comes to name.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.common.files.block_cache.source import OriginChanged, OriginFailed
from image_service.common.http.errors import HttpError
from image_service.common.registry.client import check_part, describe_failure
from image_service.common.registry.connections import RegistryCall
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.manifests import BlobDescriptor
from image_service.core.errors import BaseImageError, FormatError
from image_service.server.catalog.remote.origin import MAX_RETRY_AFTER, range_limits
from image_service.server.catalog.storage.base_records import Pin
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Generator

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.registry.client import RegistryClient
    from image_service.common.registry.references import RegistryFile


class _NoRanges(OriginFailed):
    """The registry answered with all of the blob to a range."""


class RegistryLayer:
    """A layer that is read by ranges, in threads.

    Args:
        architecture: of the image, in the names of RPM.
        client: keeps connections.
        interruption: ends all requests.
    """

    def __init__(
        self, file: RegistryFile, architecture: str, client: RegistryClient, interruption: Interruption
    ) -> None:
        self._file = file
        self._architecture = architecture
        self._client = client
        self._call = RegistryCall(range_limits(), interruption)

    def find_version(self) -> Pin:
        """Return the version that the name stands for now, after one byte of it was read.

        Raises:
            BaseImageError: it cannot be read by ranges.
            OriginFailed: no answer, or one that cannot be used.
        """
        layer = self._resolve()
        pin = Pin(layer.digest, layer.size, layer.digest)
        try:
            self.fetch(pin, 0, memoryview(bytearray(1)))
        except _NoRanges as error:
            raise BaseImageError(f"its registry does not serve ranges: {error.strerror}") from None
        return pin

    def fetch(self, pin: Pin, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a version, from `offset` on; each request names the end of its range.

        Raises:
            OriginChanged: the registry does not have this version any more.
            OriginFailed: these bytes cannot be fetched now; says why.
        """
        digest, length = pin.version or "", len(target)
        reference = self._file.reference.with_digest(digest)
        where = f"{reference.registry}/{reference.repository}: blob {digest}"
        fields = {"Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            with self._client.open_blob(reference, digest, fields, self._call) as response:
                if response.status == HTTPStatus.OK:
                    raise _NoRanges(f"{where}: it answered with status 200 to a range")
                check_part(response, offset, length, pin.size, where)
                response.read_into(target)
                if not response.is_at_end():
                    raise OriginFailed(f"{where}: it sent more than the {length} bytes of the range")
        except HttpError as error:
            raise OriginFailed(f"{where}: {describe_failure(error)}") from None
        except RegistryFailed as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise OriginChanged(error.reason) from None
            raise _failed(error) from None

    def read_whole(self, pin: Pin) -> Generator[bytes]:
        """Yield the bytes of a version, which are not compared with its digest; raises OriginFailed."""
        digest = pin.version or ""
        try:
            yield from self._client.read_blob(
                self._file.reference.with_digest(digest), BlobDescriptor("", digest, pin.size), self._call
            )
        except RegistryFailed as error:
            raise _failed(error) from None

    def _resolve(self) -> BlobDescriptor:
        try:
            image = self._client.resolve(self._file.reference, self._architecture, self._call)
            layer = image.manifest.find_file(self._file.path)
        except FormatError as error:
            raise BaseImageError(f"{self._file}: {error.detail}") from None
        except RegistryFailed as error:
            raise _failed(error) from None
        if layer is None:
            raise BaseImageError(
                f"{self._file}: a file in a container image is packed; have it downloaded, without remote"
            )
        return layer


def _failed(error: RegistryFailed) -> OriginFailed:
    seconds = parse_retry_after(error.retry_after) or 1
    return OriginFailed(error.reason, retry_after_seconds=max(1, min(seconds, MAX_RETRY_AFTER)))
