"""Uploads a disk image to a bucket: in parts with an import manifest, or as one object."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from image_service.common.objects.s3_client import (
    MAX_EXPIRES_SECONDS,
    BucketLocation,
    S3Client,
    S3Failed,
    S3Options,
)
from image_service.common.programs.dependencies import require
from image_service.common.transfer.manifest import (
    GIB,
    MANIFEST_FORMATS,
    ImportManifest,
    ManifestPart,
    render_import_manifest,
)
from image_service.common.transfer.xml_values import MAX_PARTS
from image_service.core.errors import ImageServiceError, StoreFailed, TransferFailed, Unprocessable
from image_service.core.formats.disk.model import DiskFormat
from image_service.core.formats.reading import read_exactly
from image_service.toolkit.transfer.parallel import TransferMeter, run_one, run_parallel
from image_service.toolkit.workspace.dependencies import BOTOCORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace

_Result = TypeVar("_Result")

MIB = 1 << 20
PART_BYTES = 10 * MIB
LEAST_PART_BYTES = 5 * MIB
"""Of an upload of one object; S3 refuses smaller ones, but for the last."""
MOST_PART_BYTES = 64 * MIB
"""Some parts are in memory at a time."""
_COMPACT = {DiskFormat.VMDK, DiskFormat.QCOW2}
"""The formats whose manifests have the size of the disk, because the file is smaller."""
_UNDO_SECONDS, _UNDO_ATTEMPTS = 5, 2


class PublishableFile(Protocol):
    """A file to upload: a `DiskImage`, or an `UninspectedFile`."""

    @property
    def descriptor(self) -> int:
        """Of the file, read-only."""

    @property
    def size(self) -> int:
        """Bytes of the file."""


@attrs.frozen
class UninspectedFile:
    """A file with any content, uploaded without inspection."""

    descriptor: int
    size: int


@attrs.frozen
class PublishOptions:
    """How an image is published.

    Args:
        part_bytes: of each part but the last, at most MOST_PART_BYTES.
        expires_seconds: for which the manifest's URLs are valid.
        manifest_file: gets a copy of the manifest; private, because its URLs are credentials.
        manifest_url_file: gets a URL that reads the manifest; private for the same reason.
        replace: an object of this name that exists is replaced.
        content_type: of one object.
        public: everybody may read one object.
    """

    part_bytes: int = PART_BYTES
    expires_seconds: int = MAX_EXPIRES_SECONDS
    manifest_file: Path | None = None
    manifest_url_file: Path | None = None
    replace: bool = False
    content_type: str = "application/octet-stream"
    public: bool = False


@attrs.frozen
class PublishedImage:
    """What was published.

    Args:
        url: of the manifest, or of the object; without credentials.
        location: the same as ``s3://``.
        parts: their number.
    """

    url: str
    location: str
    parts: int


def publish_parts(
    image: DiskImage, location: BucketLocation, options: PublishOptions, workspace: Workspace
) -> PublishedImage:
    """Upload an image in parts below a key of their own, and then their manifest.

    A failure deletes what was uploaded.

    Raises:
        Unprocessable: a manifest cannot describe the image, or it has too many parts.
        TransferFailed: the store cannot be reached, or refuses.
        TimedOut: a limit is exceeded.
    """
    formats = {each.value for each in MANIFEST_FORMATS.values()}
    if image.content not in formats:
        names = ", ".join(sorted(formats))
        raise Unprocessable(
            f"an import manifest describes {names}, not {image.content}: convert the image first,"
            " or publish it as one object (--single)"
        )
    offsets = _offsets(image, options)
    directory = "/".join(filter(None, (location.key.strip("/"), str(uuid.uuid4()))))
    stem = BucketLocation(location.bucket, f"{directory}/disk.{image.disk.format.value}")
    started: list[BucketLocation] = []
    with _open_client(workspace) as client:

        def put(place: BucketLocation, body: bytes) -> None:
            started.append(place)
            client.put(place, body)

        try:
            _upload(
                image,
                offsets,
                options,
                workspace,
                lambda index, body: put(_part_of(stem, index), body),
                client.abort,
            )
            manifest = _make_manifest(image, offsets, options, client, stem)
            text = render_import_manifest(manifest)
            place = _manifest_of(stem)
            run_one(lambda: put(place, text), workspace, client.abort)
            url = client.presign("get_object", place, options.expires_seconds)
            _write_private(options.manifest_file, text, "the manifest", workspace)
            _write_private(options.manifest_url_file, f"{url}\n".encode(), "the URL", workspace)
            return PublishedImage(client.url_of(place), str(place), len(offsets))
        except BaseException as error:
            is_undone = _is_undone(*(partial(S3Client.delete, location=place) for place in started))
            if not is_undone and isinstance(error, ImageServiceError):
                error.detail += f"; objects below {attrs.evolve(stem, key=directory)} cannot be deleted"
            raise


def _part_of(stem: BucketLocation, index: int) -> BucketLocation:
    return attrs.evolve(stem, key=f"{stem.key}.part{index}")


def _manifest_of(stem: BucketLocation) -> BucketLocation:
    return attrs.evolve(stem, key=f"{stem.key}.manifest.xml")


def _write_private(file: Path | None, content: bytes, name: str, workspace: Workspace) -> None:
    if file:
        workspace.reserve(len(content), name, file)
        with workspace.output(file, private=True) as path:
            path.write_bytes(content)


def publish_object(
    image: PublishableFile, location: BucketLocation, options: PublishOptions, workspace: Workspace
) -> PublishedImage:
    """Upload an image, or any other file, as one object, which appears when it is complete.

    A failure deletes what was uploaded.

    Raises:
        Unprocessable: the image would have too many parts, or parts that are too small.
        TransferFailed: the store cannot be reached, or refuses; or the object exists.
        TimedOut: a limit is exceeded.
    """
    if not location.key or location.key.endswith("/"):
        raise TransferFailed(f"{location} has no name of an object")
    if options.part_bytes < LEAST_PART_BYTES:
        raise Unprocessable(f"parts of one object need at least {LEAST_PART_BYTES} bytes (--part-size)")
    offsets = _offsets(image, options)
    with _open_client(workspace) as client:

        def ask(request: Callable[[], _Result]) -> _Result:
            return run_one(request, workspace, client.abort)

        # Some stores ignore the condition at the end.
        if not options.replace and ask(lambda: _exists(client, location)):
            raise TransferFailed(f"{location} exists; --force replaces it")
        upload = ask(lambda: client.begin_upload(location, options.content_type, public=options.public))
        etags = [""] * len(offsets)

        def put(index: int, body: bytes) -> None:
            etags[index] = client.put_part(location, upload, index + 1, body)

        try:
            _upload(image, offsets, options, workspace, put, client.abort)
            ask(lambda: client.complete_upload(location, upload, etags, replace=options.replace))
        except BaseException as error:
            if not _is_undone(lambda again: again.abort_upload(location, upload)) and isinstance(
                error, ImageServiceError
            ):
                error.detail += f"; the parts of upload {upload} cannot be deleted"
            raise
        return PublishedImage(client.url_of(location), str(location), len(offsets))


def _exists(client: S3Client, location: BucketLocation) -> bool:
    """Return True if there is an object; raises TransferFailed."""
    try:
        return client.exists(location)
    except S3Failed as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        raise TransferFailed(
            f"{location}: the store does not say whether it exists ({error.reason}): permit s3:GetObject and"
            " s3:ListBucket, or replace it by --force"
        ) from None


def _offsets(image: PublishableFile, options: PublishOptions) -> range:
    offsets = range(0, image.size, options.part_bytes)
    if not 0 < len(offsets) <= MAX_PARTS:
        raise Unprocessable(
            f"the image of {image.size} bytes has {len(offsets)} parts, not 1 to {MAX_PARTS}:"
            f" --part-size must be at least {-(-image.size // MAX_PARTS)}"
        )
    return offsets


def _upload(  # noqa: PLR0913, PLR0917 - of an image, and how it is stored
    image: PublishableFile,
    offsets: range,
    options: PublishOptions,
    workspace: Workspace,
    put: Callable[[int, bytes], None],
    abort: Callable[[], None],
) -> None:
    def read_at(offset: int, length: int) -> bytes:
        return os.pread(image.descriptor, length, offset)

    def upload(index: int) -> None:
        length = min(options.part_bytes, image.size - offsets[index])
        put(index, read_exactly(read_at, offsets[index], length))
        meter.add(length)

    workspace.progress.start("upload", image.size)
    meter = TransferMeter(workspace)
    run_parallel(upload, range(len(offsets)), workspace, abort)
    workspace.progress.finish()


def _make_manifest(
    image: DiskImage, offsets: range, options: PublishOptions, client: S3Client, stem: BucketLocation
) -> ImportManifest:
    def sign(operation: str, place: BucketLocation) -> str:
        return client.presign(operation, place, options.expires_seconds)

    def part(index: int, offset: int) -> ManifestPart:
        place = _part_of(stem, index)
        length = min(options.part_bytes, image.size - offset)
        urls = (sign(f"{method}_object", place) for method in ("head", "get", "delete"))
        return ManifestPart(index, offset, length, place.key, *urls)

    disk = image.disk
    return ImportManifest(
        format_name=disk.format.value.upper(),
        size=disk.virtual_size if disk.format in _COMPACT else image.size,
        volume_gib=-(-disk.virtual_size // GIB),
        self_destruct_url=sign("delete_object", _manifest_of(stem)),
        parts=tuple(part(index, offset) for index, offset in enumerate(offsets)),
    )


def _open_client(workspace: Workspace) -> closing[S3Client]:
    """Return a client that waits for an answer no longer than the call may take.

    Raises:
        MissingDependency: botocore is not installed.
        TransferFailed: the AWS_* variables are invalid.
    """
    require((BOTOCORE,))
    usual = S3Options(path_style=True)
    client = S3Client(attrs.evolve(usual, answer_seconds=min(usual.answer_seconds, workspace.seconds_left)))
    try:
        client.connect()
    except StoreFailed as error:
        raise TransferFailed(f"cannot find the object store: {error.detail}") from None
    return closing(client)


def _is_undone(*requests: Callable[[S3Client], None]) -> bool:
    """Undo what a failed call has stored; False when a request fails, because the others would, too."""
    options = S3Options(path_style=True, answer_seconds=_UNDO_SECONDS, attempts=_UNDO_ATTEMPTS)
    with closing(S3Client(options)) as client:
        try:
            for request in requests:
                request(client)
        except TransferFailed:
            return False
    return True
