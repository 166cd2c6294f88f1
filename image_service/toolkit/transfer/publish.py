"""Uploads a disk image to a bucket: in parts with an import manifest, or as one object."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from image_service.common.transfer.manifest import (
    GIB,
    MANIFEST_FORMATS,
    ImportManifest,
    ManifestPart,
    render_import_manifest,
)
from image_service.common.transfer.xml_values import MAX_PARTS
from image_service.core.errors import ImageServiceError, TransferFailed, Unprocessable
from image_service.core.formats.disk.model import DiskFormat
from image_service.core.formats.reading import read_exactly
from image_service.toolkit.transfer.object_store import ANSWER_SECONDS, MAX_EXPIRES_SECONDS, ObjectStore
from image_service.toolkit.transfer.parallel import TransferMeter, run_one, run_parallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.transfer.object_store import BucketLocation
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
    stem = f"{directory}/disk.{image.disk.format.value}"
    started: list[str] = []
    with _open_store(location, workspace) as store:

        def put(key: str, body: bytes) -> None:
            started.append(key)
            store.put(key, body)

        try:
            _upload(
                image,
                offsets,
                options,
                workspace,
                lambda index, body: put(f"{stem}.part{index}", body),
                store.abort,
            )
            manifest = _make_manifest(image, offsets, options, store, stem)
            text = render_import_manifest(manifest)
            key = f"{stem}.manifest.xml"
            run_one(lambda: put(key, text), workspace, store.abort)
            url = store.presign("get_object", key, options.expires_seconds)
            _write_private(options.manifest_file, text, "the manifest", workspace)
            _write_private(options.manifest_url_file, f"{url}\n".encode(), "the URL", workspace)
            return PublishedImage(store.url_of(key), store.name_of(key), len(offsets))
        except BaseException as error:
            if not _is_undone(location, *(partial(_delete, key=key) for key in started)) and isinstance(
                error, ImageServiceError
            ):
                error.detail += f"; objects below {store.name_of(directory)} cannot be deleted"
            raise


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
    key = location.key
    if not key or key.endswith("/"):
        raise TransferFailed(f"{location} has no name of an object")
    if options.part_bytes < LEAST_PART_BYTES:
        raise Unprocessable(f"parts of one object need at least {LEAST_PART_BYTES} bytes (--part-size)")
    offsets = _offsets(image, options)
    with _open_store(location, workspace) as store:

        def ask(request: Callable[[], _Result]) -> _Result:
            return run_one(request, workspace, store.abort)

        # Some stores ignore the condition at the end.
        if not options.replace and ask(lambda: store.exists(key)):
            raise TransferFailed(f"{location} exists; --force replaces it")
        upload = ask(lambda: store.begin_upload(key, options.content_type, public=options.public))
        etags = [""] * len(offsets)

        def put(index: int, body: bytes) -> None:
            etags[index] = store.put_part(key, upload, index + 1, body)

        try:
            _upload(image, offsets, options, workspace, put, store.abort)
            ask(lambda: store.complete_upload(key, upload, etags, replace=options.replace))
        except BaseException as error:
            if not _is_undone(location, lambda again: again.abort_upload(key, upload)) and isinstance(
                error, ImageServiceError
            ):
                error.detail += f"; the parts of upload {upload} cannot be deleted"
            raise
        return PublishedImage(store.url_of(key), str(location), len(offsets))


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
    image: DiskImage, offsets: range, options: PublishOptions, store: ObjectStore, stem: str
) -> ImportManifest:
    def sign(operation: str, key: str) -> str:
        return store.presign(operation, key, options.expires_seconds)

    def part(index: int, offset: int) -> ManifestPart:
        key = f"{stem}.part{index}"
        length = min(options.part_bytes, image.size - offset)
        urls = (sign(f"{method}_object", key) for method in ("head", "get", "delete"))
        return ManifestPart(index, offset, length, key, *urls)

    disk = image.disk
    return ImportManifest(
        format=disk.format,
        size=disk.virtual_size if disk.format in _COMPACT else image.size,
        volume_gib=-(-disk.virtual_size // GIB),
        self_destruct_url=sign("delete_object", f"{stem}.manifest.xml"),
        parts=tuple(part(index, offset) for index, offset in enumerate(offsets)),
    )


def _open_store(location: BucketLocation, workspace: Workspace) -> closing[ObjectStore]:
    """Return a store that waits for an answer no longer than the call may take."""
    return closing(ObjectStore(location.bucket, min(ANSWER_SECONDS, workspace.seconds_left)))


def _delete(store: ObjectStore, key: str) -> None:
    store.delete(key)


def _is_undone(location: BucketLocation, *requests: Callable[[ObjectStore], None]) -> bool:
    """Undo what a failed call has stored; False when a request fails, because the others would, too."""
    with closing(ObjectStore(location.bucket, _UNDO_SECONDS, _UNDO_ATTEMPTS)) as store:
        try:
            for request in requests:
                request(store)
        except TransferFailed:
            return False
    return True
