"""The bytes of composes: inputs of workers, and downloads of clients."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import attrs

from image_service.common.files.local_file import LocalFile
from image_service.core.errors import NotFound
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.images.boot_image import BootImage
from image_service.jobs.model import ComposeBase
from image_service.jobs.plans.import_plan import MANIFEST, MANIFEST_URL
from image_service.jobs.plans.plan import (
    BASE,
    CATALOG_IMAGE,
    IGNITION,
    IMAGE,
    KERNEL_ARGUMENTS,
    find_artifact,
)
from image_service.server.http.respond import Representation
from image_service.server.http.response import render_fields
from image_service.server.serving.digests import read_block, repr_digest
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.objects.store import ObjectStorage
    from image_service.core.extents import Extent
    from image_service.jobs.artifacts.bases import Bases
    from image_service.jobs.artifacts.composed_images import ComposedImages
    from image_service.jobs.artifacts.disk_images import DiskImages
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.images import ImageRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.model import Artifact, Compose
    from image_service.server.serving.digests import Digests
    from image_service.server.web_api.messages import ApiRequest

BLOCK_BYTES = 256 * 1024
"""Of a download in memory, which has one or two."""
LARGE_BLOCK_BYTES = 4 * BLOCK_BYTES
"""Of a few downloads: each block waits for a turn of the process, which others may keep busy."""
_FEW = 4


@attrs.frozen(eq=False)
class Content:
    """Bytes that are read by ranges.

    Args:
        representation: the bytes, with their media type and entity tag.
        sha256: of all bytes, lower-case hex; None: not known.
    """

    representation: Representation
    sha256: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.representation.image.size


@attrs.frozen(eq=False)
class ObjectFile(LocalFile):
    """An object of a store, to be read like a file; it has no descriptor, and its path is its key."""

    store: ObjectStorage = attrs.field(kw_only=True)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` only at the end. Blocks; raises as ``ObjectStorage.read_at``."""
        return self.store.read_at(self.path, offset, length)


@attrs.define(eq=False)
class ExtentStream:
    """Reads extents for a response, block by block."""

    _blocks: Iterator[bytes]
    _in_thread: InThread
    _open: WeakSet[ExtentStream] = attrs.field(factory=WeakSet)
    _first: bytes | None = attrs.field(default=None, init=False, repr=False)

    async def begin(self) -> None:
        """Read the first bytes, so that an error gets a response."""
        self._open.add(self)
        self._first = await self.read()

    async def read(self) -> bytes:
        """Return the next bytes, at most `LARGE_BLOCK_BYTES`; none at the end."""
        first, self._first = self._first, None
        if first is not None:
            return first
        return await self._in_thread(lambda: next(self._blocks, b""))

    def close(self) -> None:
        """Release the files of the extents, unless a thread is reading them."""
        self._blocks = iter(())
        self._open.discard(self)


@attrs.frozen(eq=False)
class Contents:
    """Opens the contents of composes.

    Args:
        composed: images that are not stored.
        digests: of composed images; none is computed here.
        composes: have the customizations of images.
        jobs: whose artifacts are inputs of others.
    """

    _in_thread: InThread
    _bases: Bases
    _disks: DiskImages
    _composed: ComposedImages
    _digests: Digests
    _composes: ComposeRepository
    _jobs: JobRepository
    _images: ImageRepository
    _store: ObjectStorage
    _open: WeakSet[ExtentStream] = attrs.field(factory=WeakSet, init=False)

    async def open_input(self, compose: Compose, source: str) -> Content:
        """Open an input of a job.

        Args:
            source: as in `Step.inputs`.

        Raises:
            NotFound: the compose has no such input, or not any more.
            Unavailable: the base image is being fetched; says when to retry.
            BaseImageError, Unprocessable: it can never be made of this base.
            StoreFailed: the object store does not answer.
            RowNotAuthentic: the artifact or the image was changed in the database.
        """
        match source:
            case _ if source == BASE:
                return self.open_catalog_image(ComposeBase.from_arguments(compose.plan.steps[0].arguments))
            case _ if source == IMAGE:
                return await self._open_composed(compose)
            case _ if source in {IGNITION, KERNEL_ARGUMENTS}:
                return await self._open_customization(compose, source)
            case _ if source.startswith((MANIFEST, MANIFEST_URL)):
                return await self._open_manifest(compose, source)
            case _ if source.startswith(CATALOG_IMAGE):
                return await self._open_source_image(compose, source.removeprefix(CATALOG_IMAGE))
        artifact = find_artifact(
            await self._in_thread(partial(self._jobs.find_of_compose, compose.id)), source
        )
        return self._open_artifact(artifact, artifact.name)

    async def open_image(self, compose: Compose) -> Content:
        """Open the finished image of a compose, for downloads; raises as `open_input`."""
        if compose.plan.result is None:
            return await self._open_composed(compose)
        if compose.image is None:
            raise NotFound("the compose has no image")
        return self._open_artifact(compose.image, f"{compose.id}-{compose.plan.file_name}")

    def open_catalog_image(self, image: CatalogImage | ComposeBase) -> Content:
        """Open a stored image or a base disk, for downloads and jobs.

        Raises:
            Unavailable: the base is being fetched; has the time of a retry.
            UnknownBaseImage: the base is not offered any more.
            RowNotAuthentic: the image was changed in the database.
        """
        file_name = f"{image.instance_alias}.{image.format}"
        if not isinstance(image, ComposeBase):
            self._images.check(image)
            return self._open_artifact(image.artifact, file_name)
        disk = self._disks.get_ready(self._bases.disk(image))
        extents = ExtentMap((FileExtent(disk.file, 0, disk.file.size),) if disk.file.size else ())
        return _content(extents, file_name, disk.sha256)

    async def respond(self, content: Content, request: ApiRequest) -> ApiResponse:
        """Return the response to a GET or HEAD request: 200, 206, 304, 412 or 416, sent while it is read.

        Raises:
            NotFound: the object is not there any more.
            StoreFailed: the object store does not answer, or refuses.
        """
        digest = content.sha256 and repr_digest(bytes.fromhex(content.sha256))
        response = content.representation.respond(
            "HEAD" if request.is_head else "GET",
            request.headers,
            render_fields(("Repr-Digest", digest)) if digest else b"",
        )
        stream = ExtentStream(_read_blocks(response.body, self._block_bytes), self._in_thread, self._open)
        if not request.is_head:
            await stream.begin()
        return ApiResponse(response.status, fields=response.field_lines, stream=stream)

    def _block_bytes(self) -> int:
        return LARGE_BLOCK_BYTES if len(self._open) <= _FEW else BLOCK_BYTES

    async def _open_source_image(self, compose: Compose, image_id: str) -> Content:
        """Open the image of the catalog that a job reads; it is in use until its compose ends."""
        image = await self._in_thread(partial(self._images.find, compose.tenant, image_id))
        if image is None:
            raise NotFound(f"there is no image {image_id}")
        return self.open_catalog_image(image)

    async def _open_composed(self, compose: Compose) -> Content:
        representation = (await self._composed.get(compose)).representation
        digest = self._digests.get_cached_digest(representation.image.etag)
        return Content(representation, digest.hex() if digest else _recorded_sha256(compose))

    async def _open_customization(self, compose: Compose, source: str) -> Content:
        customization = await self._in_thread(partial(self._composes.customization, compose))
        if customization is None:
            raise NotFound(f"the input {source} was erased, because the compose has ended")
        arguments = json.dumps(customization.arguments).encode()
        data = customization.ignition if source == IGNITION else arguments
        if data is None:
            raise NotFound(f"the compose has no input {source}")
        return _content(ExtentMap((Literal(data),)), source, hashlib.sha256(data).hexdigest())

    async def _open_manifest(self, compose: Compose, source: str) -> Content:
        """Open the pinned manifest of a disk of an import, or its URL."""
        found = await self._in_thread(partial(self._composes.import_source, compose))
        kind, _, number = source.rpartition(":")
        if found is None or not found.manifests:
            raise NotFound(f"the input {source} is not pinned, or was erased, because the import has ended")
        is_url = f"{kind}:" == MANIFEST_URL
        data = found.manifest_urls[int(number)].encode() if is_url else found.manifests[int(number)]
        return _content(ExtentMap((Literal(data),)), kind, hashlib.sha256(data).hexdigest())

    def _open_artifact(self, artifact: Artifact, file_name: str) -> Content:
        file = ObjectFile(-1, artifact.size, artifact.key, store=self._store)
        extents = ExtentMap((FileExtent(file, 0, artifact.size),) if artifact.size else ())
        return _content(extents, file_name, artifact.sha256)


def _content(extents: ExtentMap, file_name: str, sha256: str) -> Content:
    """Return content whose digest is its entity tag."""
    image = BootImage(extents, f'"{sha256}"', modified=None, file_name=file_name, is_iso=False)
    return Content(Representation(image), sha256)


def _recorded_sha256(compose: Compose) -> str | None:
    facts = compose.provenance.get(compose.plan.steps[0].name)
    return facts.get("sha256") if isinstance(facts, dict) else None


def _read_blocks(extents: Iterable[Extent], block_bytes: Callable[[], int]) -> Iterator[bytes]:
    """Yield the bytes of extents in blocks; the last one may have fewer.

    Args:
        block_bytes: returns the size of the next one.
    """
    pieces: list[bytes | memoryview] = []
    length, size = 0, block_bytes()
    for extent in extents:
        position = 0
        while position < extent.length:
            piece = read_block(extent.slice(position, min(extent.length, position + size - length)))
            pieces.append(piece)
            position += len(piece)
            length += len(piece)
            if length == size:
                block, pieces = b"".join(pieces), []
                length, size = 0, block_bytes()
                yield block
    if pieces:
        yield b"".join(pieces)
