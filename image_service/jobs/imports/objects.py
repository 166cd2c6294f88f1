"""Images that are one object: found and read before their import, by the headers of their format.

Each becomes an import whose manifest this service writes: of one part, which a worker fetches like others.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.http.origins import AllowedOrigins, origin_of_url
from image_service.common.objects.s3_client import MAX_EXPIRES_SECONDS, BucketLocation, S3Client
from image_service.common.transfer.client import TransferClient
from image_service.common.transfer.manifest import (
    GIB,
    IMAGE_FORMATS,
    OVA,
    ImportManifest,
    ManifestPart,
    render_import_manifest,
)
from image_service.core.errors import (
    FormatError,
    StoreFailed,
    TransferFailed,
    TransferRefused,
    UnsafeImage,
)
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat
from image_service.core.formats.disk.ova import read_ova
from image_service.core.formats.disk.reading_disks import read_disk
from image_service.core.formats.reading import SpanReader
from image_service.jobs.ec2.errors import Ec2Error, invalid_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.objects.s3_client import S3Options
    from image_service.common.transfer.client import TransferTimes
    from image_service.jobs.ec2.operations import Ec2Caller

_CONTENT_RANGE = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,18})")
_MAX_READS = 128
_MAX_READ_BYTES = 16 << 20
_MAX_VOLUME_BYTES = 16384 * GIB  # as EC2's largest volumes
_MAGIC = (("QCOW2", 0, b"QFI\xfb"), ("VMDK", 0, b"KDMV"), ("VHDX", 0, b"vhdxfile"), (OVA, 257, b"ustar"))
_VHD_COOKIE = b"conectix"


@attrs.frozen
class ObjectLocation:
    """Where an image to import is: in a bucket, or at a URL.

    Args:
        name: of the parameter, for messages.
        format_name: one of `IMAGE_FORMATS`; "": it is detected.
        bucket: "": there is a URL.
        key: in the bucket.
        url: "": there is a bucket.
        shown: what replies say of it.
    """

    name: str
    format_name: str
    bucket: str
    key: str
    url: str = attrs.field(repr=False)
    shown: Mapping[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return what replies say of it."""
        return {**self.shown, "Format": self.format_name}


@attrs.frozen
class FoundImage:
    """An image that was found, and the headers of which are right.

    Args:
        size: bytes of the object.
        virtual_size: bytes of its disk.
        url: to read it by, until the task expires.
        origin: of that URL.
    """

    format_name: str
    size: int
    virtual_size: int
    url: str = attrs.field(repr=False)
    origin: str

    @property
    def volume_gib(self) -> int:
        """GiB of the smallest volume that holds the disk."""
        return max(1, -(-self.virtual_size // GIB))

    def manifest(self) -> bytes:
        """Return a manifest of the object as one part; the plan of its import deletes nothing."""
        part = ManifestPart(0, 0, self.size, "object", self.url, self.url, self.url)
        return render_import_manifest(
            ImportManifest(self.format_name, self.virtual_size, self.volume_gib, self.url, (part,))
        )


class ObjectSources:
    """Finds images, in buckets by the credentials of this service. May be used in several threads.

    Args:
        allowed: origins of URLs; buckets are allowed by the access keys of callers.
    """

    def __init__(self, options: S3Options, allowed: AllowedOrigins, times: TransferTimes) -> None:
        self._s3 = S3Client(options)
        self._allowed = allowed
        self._times = times

    def find(self, caller: Ec2Caller, location: ObjectLocation) -> FoundImage:
        """Return an image after its headers were read.

        Raises:
            Ec2Error: the access key may not use the bucket, the URL is not allowed, or there is no such image
                of a format that is imported.
            StoreFailed: the server does not answer, or there are no credentials of S3.
        """
        url, allowed = location.url, self._allowed
        try:
            if location.bucket:
                if not caller.may_use(location.bucket):
                    raise Ec2Error(
                        "UnauthorizedOperation",
                        f"the access key may not import from the bucket {location.bucket}",
                    )
                place = BucketLocation(location.bucket, location.key)
                url = self._s3.presign("get_object", place, MAX_EXPIRES_SECONDS)
                named = self._allowed.named | {origin_of_url(url, location.name)}
                allowed = attrs.evolve(self._allowed, named=named)
            allowed.check(url, location.name)
            reader = _ObjectReader(TransferClient(allowed, times=self._times), url, location.name)
            size = reader.find_size()
            name = location.format_name or _detect(reader, size)
            virtual_size = _virtual_size(name, reader, size)
        except (FormatError, UnsafeImage) as error:
            raise invalid_value(f"{location.name}: {error.detail}") from None
        except TransferRefused as error:
            raise invalid_value(
                f"{location.name}: {error.detail}; is there an object, and may it be read?"
            ) from None
        except TransferFailed as error:
            raise StoreFailed(f"{location.name}: {error.detail}", retry_after_seconds=5) from None
        if not SECTOR_BYTES <= virtual_size <= _MAX_VOLUME_BYTES:
            raise invalid_value(
                f"{location.name}: the disk has {virtual_size} bytes; it must have from {SECTOR_BYTES} to"
                f" {_MAX_VOLUME_BYTES}"
            )
        return FoundImage(name, size, virtual_size, url, str(origin_of_url(url, location.name)))


class _ObjectReader:
    """Reads ranges of an object, a limited number."""

    def __init__(self, client: TransferClient, url: str, name: str) -> None:
        self._client = client
        self._url = url
        self._name = name
        self._reads = 0

    def find_size(self) -> int:
        """Return the bytes of the object."""
        return self._ask(0, 1)[1]

    def __call__(self, offset: int, length: int) -> bytes:
        """Return bytes of the object; fewer than `length` only at its end."""
        return self._ask(offset, length)[0] if length else b""

    def _ask(self, offset: int, length: int) -> tuple[bytes, int]:
        self._reads += 1
        if self._reads > _MAX_READS or length > _MAX_READ_BYTES:
            raise FormatError("its headers are too large, or too many")
        fields = {"Range": f"bytes={offset}-{offset + length - 1}"}

        def attempt() -> tuple[bytes, int]:
            with self._client.send("GET", self._url, self._name, fields, length) as response:
                match = _CONTENT_RANGE.fullmatch(response.field("Content-Range"))
                if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and match:
                    return b"", int(match[1])
                if response.status == HTTPStatus.OK:
                    raise FormatError(f"{response.url} does not serve byte ranges")
                if response.status != HTTPStatus.PARTIAL_CONTENT or match is None:
                    raise response.failure()
                return response.read(length), int(match[1])

        return self._client.retry(attempt)


def _detect(reader: _ObjectReader, size: int) -> str:
    head = reader(0, SECTOR_BYTES)
    for name, offset, magic in _MAGIC:
        if head[offset:].startswith(magic):
            return name
    footer = reader(size - SECTOR_BYTES, SECTOR_BYTES) if size > SECTOR_BYTES else b""
    return "VHD" if _VHD_COOKIE in {head[:8], footer[:8]} else "RAW"


def _virtual_size(name: str, reader: _ObjectReader, size: int) -> int:
    if name == OVA:
        disk = read_ova(reader, size).disk
        return read_disk(DiskFormat.VMDK, SpanReader(reader, disk), disk.length).virtual_size
    return read_disk(IMAGE_FORMATS[name], reader, size).virtual_size
